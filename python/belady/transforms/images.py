"""Steps on images, with torchvision's names, arguments and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._configuration import arguments
from . import _checks as checks
from .step import Step

#: Pillow's default limit: 537 MB as RGB.
_MAX_PIXELS = 178_956_970

Size = int | tuple[int, ...] | list[int]
Range = tuple[float, float] | list[float]
Padding = int | tuple[int, ...] | list[int]
Fill = float | tuple[float, ...] | list[float] | None
#: A name, torchvision's `InterpolationMode`, or Pillow's number.
Interpolation = Any


@dataclass(frozen=True, repr=False)
class Decode(Step):
    """Decodes a JPEG, PNG, WebP, BMP or the first frame of a GIF. The content tells the format.

    `mode` is "RGB", "GRAY" or "UNCHANGED" (the channels of the file). An image of more than
    `max_pixels` is refused before memory is allocated.

    `dct_scaling` decodes a JPEG at half, a quarter or an eighth of its size if a later step makes
    it at least twice as small: faster for large photographs, with slightly different pixels."""

    mode: str = "RGB"
    apply_exif_orientation: bool = False
    max_pixels: int = _MAX_PIXELS
    dct_scaling: bool = False

    def _arguments(self) -> dict[str, Any]:
        exif = arguments.flag(self.apply_exif_orientation, "Decode: apply_exif_orientation")
        return {
            "mode": arguments.choice(self.mode, "Decode: mode", ("RGB", "GRAY", "UNCHANGED")),
            "apply_exif_orientation": exif,
            "max_pixels": arguments.count(
                self.max_pixels, "Decode: max_pixels", least=1, most=2**62
            ),
            "dct_scaling": arguments.flag(self.dct_scaling, "Decode: dct_scaling"),
        }


@dataclass(frozen=True, repr=False)
class Resize(Step):
    """Resizes to `(height, width)`, or the shorter side to one number.

    The longer side follows, up to `max_size`.
    """

    size: Size
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    def _arguments(self) -> dict[str, Any]:
        size = checks.size(self.size, "Resize: size")
        longest = self.max_size
        if longest is not None:
            checks.extent(longest, "Resize: max_size")
            if len(size) == 2:
                raise ValueError("Resize: max_size needs a size of one number")
            if longest <= size[0]:
                raise ValueError(
                    f"Resize: max_size is for the longer side, so {longest} has to be more than "
                    f"size, {size[0]}"
                )
        interpolation = checks.interpolation(self.interpolation, "Resize: interpolation")
        self._set("interpolation", interpolation)
        return {
            "size": size,
            "interpolation": interpolation,
            "max_size": longest,
            "antialias": _antialias(self.antialias, "Resize: antialias"),
        }


@dataclass(frozen=True, repr=False)
class CenterCrop(Step):
    """Crops the centre; a smaller image is padded with zeros, as in torchvision."""

    size: Size

    def _arguments(self) -> dict[str, Any]:
        return {"size": checks.square(self.size, "CenterCrop: size")}


@dataclass(frozen=True, repr=False)
class RandomResizedCrop(Step):
    """Crops a random part, of `scale` of the area and of a `ratio` of width to height.

    The part is resized to `size`.
    """

    size: Size
    scale: Range = (0.08, 1.0)
    ratio: Range = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def _arguments(self) -> dict[str, Any]:
        name = "RandomResizedCrop"
        interpolation = checks.interpolation(self.interpolation, f"{name}: interpolation")
        self._set("interpolation", interpolation)
        scale = checks.ascending(self.scale, f"{name}: scale", least=0)
        ratio = checks.ascending(self.ratio, f"{name}: ratio", least=0)
        if ratio[0] == 0 or scale[1] == 0:
            raise ValueError(f"{name}: scale and ratio have to be more than zero")
        return {
            "size": checks.square(self.size, f"{name}: size"),
            "scale": scale,
            "ratio": ratio,
            "interpolation": interpolation,
            "antialias": _antialias(self.antialias, f"{name}: antialias"),
        }


@dataclass(frozen=True, repr=False)
class RandomCrop(Step):
    """Crops a random part of `size`, after `padding`."""

    size: Size
    padding: Padding | None = None
    pad_if_needed: bool = False
    fill: Fill = 0
    padding_mode: str = "constant"

    def _arguments(self) -> dict[str, Any]:
        padding = self.padding
        sides = None if padding is None else checks.padding(padding, "RandomCrop: padding")
        mode = arguments.choice(self.padding_mode, "RandomCrop: padding_mode", checks.PADDING_MODES)
        return {
            "size": checks.square(self.size, "RandomCrop: size"),
            "padding": sides,
            "pad_if_needed": arguments.flag(self.pad_if_needed, "RandomCrop: pad_if_needed"),
            "fill": checks.fill(self.fill, "RandomCrop: fill"),
            "padding_mode": mode,
        }


@dataclass(frozen=True, repr=False)
class Pad(Step):
    """Adds a border: one width, `(left/right, top/bottom)` or `(left, top, right, bottom)`."""

    padding: Padding
    fill: Fill = 0
    padding_mode: str = "constant"

    def _arguments(self) -> dict[str, Any]:
        mode = arguments.choice(self.padding_mode, "Pad: padding_mode", checks.PADDING_MODES)
        return {
            "padding": checks.padding(self.padding, "Pad: padding"),
            "fill": checks.fill(self.fill, "Pad: fill"),
            "padding_mode": mode,
        }


@dataclass(frozen=True, repr=False)
class RandomHorizontalFlip(Step):
    """Mirrors left and right, with probability `p`."""

    p: float = 0.5

    def _arguments(self) -> dict[str, Any]:
        return {"p": checks.probability(self.p, "RandomHorizontalFlip: p")}


@dataclass(frozen=True, repr=False)
class RandomVerticalFlip(Step):
    """Mirrors top and bottom, with probability `p`."""

    p: float = 0.5

    def _arguments(self) -> dict[str, Any]:
        return {"p": checks.probability(self.p, "RandomVerticalFlip: p")}


@dataclass(frozen=True, repr=False)
class ColorJitter(Step):
    """Changes brightness, contrast, saturation and hue at random, in a random order.

    A number x is the range from 1 - x to 1 + x (for hue from -x to x); a pair is the range. None
    and 0 change nothing."""

    brightness: float | Range | None = None
    contrast: float | Range | None = None
    saturation: float | Range | None = None
    hue: float | Range | None = None

    def _arguments(self) -> dict[str, Any]:
        return {
            "brightness": _factors(self.brightness, "ColorJitter: brightness"),
            "contrast": _factors(self.contrast, "ColorJitter: contrast"),
            "saturation": _factors(self.saturation, "ColorJitter: saturation"),
            "hue": _turns(self.hue, "ColorJitter: hue"),
        }


def _factors(value: object, name: str) -> list[float] | None:
    if value is None:
        return None
    if isinstance(value, tuple):
        factors = checks.ascending(value, name, least=0)
    else:
        around = checks.number(value, name, least=0)
        factors = [max(0.0, 1 - around), 1 + around]
    return None if factors == [1.0, 1.0] else factors


def _turns(value: object, name: str) -> list[float] | None:
    if value is None:
        return None
    if isinstance(value, tuple):
        turns = checks.ascending(value, name, least=-0.5, most=0.5)
    else:
        around = checks.number(value, name, least=0, most=0.5)
        turns = [-around, around]
    return None if turns == [0.0, 0.0] else turns


def _antialias(value: object, name: str) -> bool:
    # Older versions of torchvision have None and "warn" for True.
    return True if value is None or value == "warn" else arguments.flag(value, name)
