"""Chains of torchvision's transforms, as programs have them for `ImageFolder(transform=...)`.

Such a chain works on an image of Pillow's in RGB. Steps that the native module has become native ones,
with their parameters, from the first on. From the first that it does not have, or that would not give the
same pixels, the rest is run by torchvision itself, on what it would get there: an image of Pillow's, a
tensor, or an `Image` of `torchvision.tv_tensors`. Which, is told once.

Random steps follow torchvision's rules; the numbers that native ones draw are the loader's.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import checks
from .images import (
    CenterCrop,
    ColorJitter,
    Decode,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from .numbers import Normalize, ToDtype, ToTensor
from .step import Step

log = logging.getLogger("belady")

#: What has been told.
_TOLD: set[str] = set()


class Value(NamedTuple):
    """What comes out of a step."""

    #: "pillow", "pixels" (a tensor of uint8) or "numbers" (a tensor of floats).
    kind: str
    #: Whether a tensor is one of `tv_tensors`.
    wrapped: bool = False


_PILLOW = Value("pillow")
#: Native steps for one of torchvision's, and what comes out; None if there are none.
Made = tuple[list[Step], Value] | None


def steps_of(given: Any) -> tuple[Any, ...] | None:
    """The steps for a chain of torchvision's: a transform, a `Compose`, an `nn.Sequential`, or a list
    that begins with one. None for any other chain."""
    links = _flattened(given)
    if not links or not _is_torchvisions(given if _is_torchvisions(given) else links[0]):
        return None
    steps: list[Any] = [Decode()]
    value = _PILLOW
    for number, link in enumerate(links):
        made = _native(link, value)
        if made is None:
            _tell(links[:number], links[number:])
            return (*steps, *_handed_over(value), *links[number:])
        steps += made[0]
        value = made[1]
    _tell(links, [])
    return (*steps, *_handed_over(value._replace(wrapped=False)))


def _handed_over(value: Value) -> list[Any]:
    """What makes of a native value what torchvision has there."""
    if value.kind == "pillow":
        return [as_pillow]
    plain = [ToTensor("uint8")] if value.kind == "pixels" else []
    return [*plain, as_tv_image] if value.wrapped else plain


def as_pillow(array: Any) -> Any:
    """Pixels as an image of Pillow's."""
    from PIL import Image

    return Image.fromarray(array)


def as_tv_image(tensor: Any) -> Any:
    """A tensor as `v2.ToImage` gives it."""
    from torchvision import tv_tensors  # type: ignore[import-untyped]

    return tv_tensors.Image(tensor)


def _flattened(given: Any) -> list[Any]:
    """The steps of a chain, one after another."""
    inner: Iterable[Any]
    if _is_torchvisions(given) and type(given).__name__ == "Compose":
        inner = given.transforms
    elif isinstance(given, list | tuple) or _is_sequential(given):
        inner = given
    else:
        return [given]
    return [link for item in inner for link in _flattened(item)]


def _is_torchvisions(given: Any) -> bool:
    return type(given).__module__.startswith("torchvision.transforms")


def _is_sequential(given: Any) -> bool:
    modules = sys.modules.get("torch.nn")
    return modules is not None and type(given) is modules.Sequential


def _tell(native: list[Any], rest: list[Any]) -> None:
    named = [", ".join(_name(link) for link in links) for links in (native, rest)]
    text = f"{named[0] or 'nothing'} of torchvision's transforms runs natively"
    if rest:
        text += f", and {named[1]} in Python, by torchvision itself"
    if text not in _TOLD:
        _TOLD.add(text)
        log.log(logging.WARNING if rest else logging.INFO, "%s", text)


def _name(link: Any) -> str:
    return getattr(link, "__name__", None) or type(link).__name__


def _native(link: Any, value: Value) -> Made:
    if isinstance(link, Step):
        return [link], Value("numbers") if isinstance(link, ToTensor) else value
    make = _MAKERS.get(type(link).__name__) if _is_torchvisions(link) else None
    try:
        return make(link, value) if make is not None else None
    except (AttributeError, TypeError, ValueError):
        return None  # torchvision says itself what is wrong with it


def _on_image(make: Callable[[Any, Value], Step | None]) -> Callable[[Any, Value], Made]:
    """A step on images, which leaves them what they are."""

    def made(link: Any, value: Value) -> Made:
        step = make(link, value) if value.kind != "numbers" else None
        return None if step is None else ([step], value)

    return made


def _resampling(link: Any, value: Value) -> dict[str, Any] | None:
    """How pixels are resampled, where the native module does it as torchvision does there. ValueError for
    what it does not have at all."""
    mode = checks.interpolation(link.interpolation, "interpolation")
    if value.kind == "pillow":
        # Pillow always smooths, and has a nearest pixel of its own.
        return None if mode == "nearest" else {"interpolation": mode, "antialias": True}
    smooths = link.antialias is True
    if mode == "bicubic" and not smooths:
        return None
    return {"interpolation": mode, "antialias": smooths}


def _resize(link: Any, value: Value) -> Step | None:
    how = _resampling(link, value)
    return None if how is None else Resize(link.size, max_size=link.max_size, **how)


def _random_resized_crop(link: Any, value: Value) -> Step | None:
    how = _resampling(link, value)
    return None if how is None else RandomResizedCrop(link.size, link.scale, link.ratio, **how)


def _random_crop(link: Any, value: Value) -> Step | None:
    padding = link.padding
    if padding is not None and ".v2" in type(link).__module__:
        left, right, top, bottom = padding
        padding = (left, top, right, bottom)
    return RandomCrop(link.size, padding, link.pad_if_needed, _fill(link), link.padding_mode)


def _fill(link: Any) -> Any:
    """What a border is filled with; ValueError if that depends on what it is a border of."""
    if isinstance(link.fill, dict):
        raise ValueError
    return link.fill


def _color_jitter(link: Any, value: Value) -> Step | None:
    if value.kind == "pillow":
        return None  # whose colours are rounded in other places
    return ColorJitter(link.brightness, link.contrast, link.saturation, link.hue)


def _to_tensor(link: Any, value: Value) -> Made:
    torch: Any = sys.modules["torch"]
    if value.kind != "pillow" or torch.get_default_dtype() is not torch.float32:
        return None
    return [ToTensor()], Value("numbers")


def _pil_to_tensor(link: Any, value: Value) -> Made:
    return ([], Value("pixels")) if value.kind == "pillow" else None


def _to_image(link: Any, value: Value) -> Made:
    return ([], Value("pixels", wrapped=True)) if value.kind != "numbers" else None


def _to_dtype(link: Any, value: Value) -> Made:
    scales = getattr(link, "scale", True)  # ConvertImageDtype always does
    dtype = str(link.dtype).removeprefix("torch.")
    if value.kind != "pixels" or dtype not in ("uint8", "float32", "float16", "bfloat16"):
        return None
    if dtype == "uint8":
        return [], value
    steps: list[Step] = [ToTensor(dtype)] if scales else [ToTensor("uint8"), ToDtype(dtype)]
    return steps, value._replace(kind="numbers")


def _normalize(link: Any, value: Value) -> Made:
    return ([Normalize(link.mean, link.std)], value) if value.kind == "numbers" else None


def _nothing(link: Any, value: Value) -> Made:
    return [], value


def _rgb(link: Any, value: Value) -> Made:
    return ([], value) if value.kind != "numbers" else None


def _classification(link: Any, value: Value) -> Made:
    """What the weights of torchvision's models for classification bring along."""
    how = _resampling(link, value)
    if how is None or value != _PILLOW:
        return None
    steps = [Resize(link.resize_size, **how), CenterCrop(link.crop_size), ToTensor()]
    return [*steps, Normalize(link.mean, link.std)], Value("numbers")


_MAKERS: dict[str, Callable[[Any, Value], Made]] = {
    "Resize": _on_image(_resize),
    "CenterCrop": _on_image(lambda link, value: CenterCrop(link.size)),
    "RandomResizedCrop": _on_image(_random_resized_crop),
    "RandomCrop": _on_image(_random_crop),
    "Pad": _on_image(lambda link, value: Pad(link.padding, _fill(link), link.padding_mode)),
    "RandomHorizontalFlip": _on_image(lambda link, value: RandomHorizontalFlip(link.p)),
    "RandomVerticalFlip": _on_image(lambda link, value: RandomVerticalFlip(link.p)),
    "ColorJitter": _on_image(_color_jitter),
    "ToTensor": _to_tensor,
    "PILToTensor": _pil_to_tensor,
    "ToImage": _to_image,
    "ToDtype": _to_dtype,
    "ConvertImageDtype": _to_dtype,
    "Normalize": _normalize,
    "Identity": _nothing,
    "RGB": _rgb,
    "ImageClassification": _classification,
}
