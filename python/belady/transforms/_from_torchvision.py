"""Converts chains of torchvision, as written for `ImageFolder(transform=...)`.

Such a chain works on an RGB image of Pillow. Its first steps become native ones with their
parameters, up to the first that the native module does not have or that would give other pixels.
From there on torchvision itself runs, on what it would get there: an image of Pillow, a tensor, or
an `Image` of `torchvision.tv_tensors`. The split is logged once.

Random steps follow torchvision's rules; native ones draw the loader's numbers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import _checks as checks
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

#: Messages that were logged.
_LOGGED: set[str] = set()


class Value(NamedTuple):
    """The result of a step."""

    #: "pillow", "pixels" (a tensor of uint8) or "numbers" (a tensor of floats).
    kind: str
    #: Whether a tensor is wrapped by `tv_tensors`.
    wrapped: bool = False


_PILLOW = Value("pillow")
#: Native steps for one of torchvision, and their result; None if there are none.
Converted = tuple[list[Step], Value] | None


def steps_of(given: Any) -> tuple[Any, ...] | None:
    """Returns the steps for a chain of torchvision; None for any other chain.

    A chain is a transform, a `Compose`, an `nn.Sequential`, or a list that begins with one.
    """
    links = _flattened(given)
    if not links or not _is_of_torchvision(given if _is_of_torchvision(given) else links[0]):
        return None
    steps: list[Any] = [Decode()]
    value = _PILLOW
    for number, link in enumerate(links):
        made = _native(link, value)
        if made is None:
            _log_split(links[:number], links[number:])
            return (*steps, *_handed_over(value), *links[number:])
        steps += made[0]
        value = made[1]
    _log_split(links, [])
    return (*steps, *_handed_over(value._replace(wrapped=False)))


def _handed_over(value: Value) -> list[Any]:
    """Returns the steps that convert a native value to what torchvision has there."""
    if value.kind == "pillow":
        return [as_pillow]
    plain = [ToTensor("uint8")] if value.kind == "pixels" else []
    return [*plain, as_tv_image] if value.wrapped else plain


def as_pillow(array: Any) -> Any:
    """Returns pixels as an image of Pillow."""
    from PIL import Image

    return Image.fromarray(array)


def as_tv_image(tensor: Any) -> Any:
    """Returns a tensor as `v2.ToImage` does."""
    from torchvision import tv_tensors  # type: ignore[import-untyped]

    return tv_tensors.Image(tensor)


def _flattened(given: Any) -> list[Any]:
    """Returns the steps of nested chains, one after another."""
    inner: Iterable[Any]
    if _is_of_torchvision(given) and type(given).__name__ == "Compose":
        inner = given.transforms
    elif isinstance(given, list | tuple) or _is_sequential(given):
        inner = given
    else:
        return [given]
    return [link for item in inner for link in _flattened(item)]


def _is_of_torchvision(given: Any) -> bool:
    return type(given).__module__.startswith("torchvision.transforms")


def _is_sequential(given: Any) -> bool:
    modules = sys.modules.get("torch.nn")
    return modules is not None and type(given) is modules.Sequential


def _log_split(native: list[Any], rest: list[Any]) -> None:
    named = [", ".join(_name(link) for link in links) for links in (native, rest)]
    text = f"{named[0] or 'nothing'} of torchvision's transforms runs natively"
    if rest:
        text += f", and {named[1]} in Python, by torchvision itself"
    if text not in _LOGGED:
        _LOGGED.add(text)
        log.log(logging.WARNING if rest else logging.INFO, "%s", text)


def _name(link: Any) -> str:
    return getattr(link, "__name__", None) or type(link).__name__


def _native(link: Any, value: Value) -> Converted:
    if isinstance(link, Step):
        return [link], Value("numbers") if isinstance(link, ToTensor) else value
    make = _MAKERS.get(type(link).__name__) if _is_of_torchvision(link) else None
    try:
        return make(link, value) if make is not None else None
    except (AttributeError, TypeError, ValueError):
        return None  # torchvision itself reports what is wrong


def _on_image(make: Callable[[Any, Value], Step | None]) -> Callable[[Any, Value], Converted]:
    """Converts a step from images to images."""

    def made(link: Any, value: Value) -> Converted:
        step = make(link, value) if value.kind != "numbers" else None
        return None if step is None else ([step], value)

    return made


def _resampling(link: Any, value: Value) -> dict[str, Any] | None:
    """Returns the arguments of resampling; None if torchvision would give other pixels there.

    Raises ValueError for an interpolation that the native module does not have.
    """
    mode = checks.interpolation(link.interpolation, "interpolation")
    if value.kind == "pillow":
        # Pillow always antialiases, and chooses the nearest pixel in another way.
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
    """Returns the fill of a border. Raises ValueError if it depends on the type of the input."""
    if isinstance(link.fill, dict):
        raise ValueError
    return link.fill


def _color_jitter(link: Any, value: Value) -> Step | None:
    if value.kind == "pillow":
        return None  # Pillow rounds colours in other places
    return ColorJitter(link.brightness, link.contrast, link.saturation, link.hue)


def _to_tensor(link: Any, value: Value) -> Converted:
    torch: Any = sys.modules["torch"]
    if value.kind != "pillow" or torch.get_default_dtype() is not torch.float32:
        return None
    return [ToTensor()], Value("numbers")


def _pil_to_tensor(link: Any, value: Value) -> Converted:
    return ([], Value("pixels")) if value.kind == "pillow" else None


def _to_image(link: Any, value: Value) -> Converted:
    return ([], Value("pixels", wrapped=True)) if value.kind != "numbers" else None


def _to_dtype(link: Any, value: Value) -> Converted:
    scales = getattr(link, "scale", True)  # ConvertImageDtype always does
    dtype = str(link.dtype).removeprefix("torch.")
    if value.kind != "pixels" or dtype not in ("uint8", "float32", "float16", "bfloat16"):
        return None
    if dtype == "uint8":
        return [], value
    steps: list[Step] = [ToTensor(dtype)] if scales else [ToTensor("uint8"), ToDtype(dtype)]
    return steps, value._replace(kind="numbers")


def _normalize(link: Any, value: Value) -> Converted:
    return ([Normalize(link.mean, link.std)], value) if value.kind == "numbers" else None


def _nothing(link: Any, value: Value) -> Converted:
    return [], value


def _rgb(link: Any, value: Value) -> Converted:
    return ([], value) if value.kind != "numbers" else None


def _classification(link: Any, value: Value) -> Converted:
    """Converts the transform that torchvision's classification weights contain."""
    how = _resampling(link, value)
    if how is None or value != _PILLOW:
        return None
    steps = [Resize(link.resize_size, **how), CenterCrop(link.crop_size), ToTensor()]
    return [*steps, Normalize(link.mean, link.std)], Value("numbers")


_MAKERS: dict[str, Callable[[Any, Value], Converted]] = {
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
