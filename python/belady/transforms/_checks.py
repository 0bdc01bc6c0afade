"""Checks of steps' arguments, by torchvision's rules.

A wrong value is a `TypeError` or a `ValueError` with one sentence, which names the step and its
argument, such as `Resize: size`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from .._configuration import arguments

DTYPES = (
    "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
PADDING_MODES = ("constant", "edge", "reflect", "symmetric")
#: Interpolations by Pillow's numbers, which torchvision takes too.
_PILLOW = {0: "nearest", 2: "bilinear", 3: "bicubic"}
#: Longer than any image's side; a JPEG has at most 65,500 pixels.
_LONGEST = 2**24


def plain(value: Any) -> Any:
    """Returns lists, tuples and arrays as tuples, so that steps can be compared and hashed."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    return value


def number(value: object, name: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Returns a finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} has to be a number, not {arguments.shown(value)}")
    given = float(value)
    if math.isfinite(given) and least <= given <= most:
        return given
    bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
    wanted = "finite" if least == -math.inf else bounds
    raise ValueError(f"{name} has to be {wanted}, not {given:g}")


def extent(value: object, name: str) -> int:
    """Returns a number of pixels, at least one."""
    return arguments.count(value, name, least=1, most=_LONGEST, kind="a whole number of pixels")


def size(value: object, name: str) -> list[int]:
    """Returns one extent or two: `[shorter side]` or `[height, width]`."""
    if not isinstance(value, tuple):
        return [extent(value, name)]
    if len(value) not in (1, 2):
        raise ValueError(
            f"{name} has to be one number or (height, width), not {arguments.shown(value)}"
        )
    return [extent(item, name) for item in value]


def square(value: object, name: str) -> list[int]:
    """Returns height and width; one number is both."""
    given = size(value, name)
    return given if len(given) == 2 else given * 2


def padding(value: object, name: str) -> list[int]:
    """Returns left, top, right and bottom, from one, two or four numbers."""
    given = value if isinstance(value, tuple) else (value,)
    if len(given) not in (1, 2, 4):
        raise ValueError(
            f"{name} has to be one number, (left and right, top and bottom) or (left, top, right, "
            f"bottom), not {arguments.shown(value)}"
        )
    kind = "a number of pixels"
    sides = [arguments.count(item, name, most=_LONGEST, kind=kind) for item in given]
    return {1: sides * 4, 2: sides * 2, 4: sides}[len(sides)]


def fill(value: object, name: str) -> list[int]:
    """Returns the value of a pixel, one or one for each channel."""
    if value is None:
        return [0]
    given = value if isinstance(value, tuple) else (value,)
    if not 1 <= len(given) <= 4:
        wanted = "one number or one for each channel"
        raise ValueError(f"{name} has to be {wanted}, not {arguments.shown(value)}")
    # torchvision's tensors of uint8 truncate.
    return [int(number(item, name, least=0, most=255)) for item in given]


def ascending(
    value: object, name: str, *, least: float = -math.inf, most: float = math.inf
) -> list[float]:
    """Returns a pair whose second is not below its first."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} has to be a pair (lowest, highest), not {arguments.shown(value)}")
    if len(value) != 2:
        raise ValueError(f"{name} has to be a pair (lowest, highest), not {arguments.shown(value)}")
    low, high = (number(item, name, least=least, most=most) for item in value)
    if low > high:
        raise ValueError(f"{name} has to be (lowest, highest), not {arguments.shown(value)}")
    return [low, high]


def shape(value: object, name: str) -> list[int | None]:
    """Returns extents; one of them may be -1 or None, which takes the rest."""
    given = value if isinstance(value, tuple) else (value,)
    extents: list[int | None] = []
    for item in given:
        free = item is None or (item == -1 and not isinstance(item, bool))
        extents.append(None if free else arguments.count(item, name, most=2**60))
    if extents.count(None) > 1:
        raise ValueError(f"{name} can leave one extent open, not {extents.count(None)}")
    return extents


def for_channels(value: object, name: str) -> list[float]:
    """Returns one number, or one for each channel."""
    given = value if isinstance(value, tuple) else (value,)
    if not given:
        raise ValueError(f"{name} is empty; give one number for each channel")
    return [number(item, name) for item in given]


def probability(value: object, name: str) -> float:
    """Returns a number from 0 to 1."""
    return number(value, name, least=0, most=1)


def interpolation(value: object, name: str) -> str:
    """Returns an interpolation from a name, an `InterpolationMode` or Pillow's number."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = _PILLOW.get(int(value), value)
    given = getattr(value, "value", value)
    return arguments.choice(given, name, INTERPOLATIONS)


def dtype(value: object, name: str, among: Sequence[str] = DTYPES) -> str:
    """Returns the name of a dtype of torch, numpy or JAX."""
    given = value
    if getattr(value, "isnative", True) is False:
        raise ValueError(
            f"{name} has to be in the machine's byte order, not {arguments.shown(value)}"
        )
    if not isinstance(value, str):
        given = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
        given = str(given).removeprefix("torch.")
        if given not in DTYPES:
            raise TypeError(
                f'{name} has to be a dtype such as "{among[-1]}", not {arguments.shown(value)}'
            )
    return arguments.choice(given, name, among)
