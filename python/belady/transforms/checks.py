"""What people write as arguments of steps, checked, by torchvision's rules.

As in `belady.arguments`: a wrong value is a `TypeError` or a `ValueError` with one sentence. The
name that it is told by is that of the step and its argument, such as `Resize: size`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from .. import arguments

DTYPES = (
    "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
PADDING_MODES = ("constant", "edge", "reflect", "symmetric")
#: Interpolations by the numbers that Pillow has for them, which torchvision takes too.
_PILLOW = {0: "nearest", 2: "bilinear", 3: "bicubic"}
#: No image has a longer side; those of a JPEG end at 65,500.
_LONGEST = 2**24


def plain(value: Any) -> Any:
    """Lists, tuples and arrays as tuples, so that a step can be compared, hashed and printed."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    return value


def number(value: object, name: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} has to be a number, not {_shown(value)}")
    given = float(value)
    if math.isfinite(given) and least <= given <= most:
        return given
    bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
    wanted = "finite" if least == -math.inf else bounds
    raise ValueError(f"{name} has to be {wanted}, not {given:g}")


def extent(value: object, name: str) -> int:
    """A number of pixels, at least one."""
    return arguments.count(value, name, least=1, most=_LONGEST, kind="a whole number of pixels")


def size(value: object, name: str) -> list[int]:
    """One extent or two: `[shorter side]` or `[height, width]`."""
    if not isinstance(value, tuple):
        return [extent(value, name)]
    if len(value) not in (1, 2):
        raise ValueError(f"{name} has to be one number or (height, width), not {_shown(value)}")
    return [extent(item, name) for item in value]


def square(value: object, name: str) -> list[int]:
    """Height and width; one number is both."""
    given = size(value, name)
    return given if len(given) == 2 else given * 2


def padding(value: object, name: str) -> list[int]:
    """Left, top, right, bottom, from one, two or four numbers."""
    given = value if isinstance(value, tuple) else (value,)
    if len(given) not in (1, 2, 4):
        raise ValueError(
            f"{name} has to be one number, (left and right, top and bottom) or (left, top, right, "
            f"bottom), not {_shown(value)}"
        )
    kind = "a number of pixels"
    sides = [arguments.count(item, name, most=_LONGEST, kind=kind) for item in given]
    return {1: sides * 4, 2: sides * 2, 4: sides}[len(sides)]


def fill(value: object, name: str) -> list[int]:
    """One value of a pixel, or one for each channel."""
    if value is None:
        return [0]
    given = value if isinstance(value, tuple) else (value,)
    if not 1 <= len(given) <= 4:
        wanted = "one number or one for each channel"
        raise ValueError(f"{name} has to be {wanted}, not {_shown(value)}")
    # torchvision's tensors of uint8 cut what is behind the point.
    return [int(number(item, name, least=0, most=255)) for item in given]


def ascending(
    value: object, name: str, *, least: float = -math.inf, most: float = math.inf
) -> list[float]:
    """A pair whose second is not below its first."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} has to be a pair (lowest, highest), not {_shown(value)}")
    if len(value) != 2:
        raise ValueError(f"{name} has to be a pair (lowest, highest), not {_shown(value)}")
    low, high = (number(item, name, least=least, most=most) for item in value)
    if low > high:
        raise ValueError(f"{name} has to be (lowest, highest), not {_shown(value)}")
    return [low, high]


def shape(value: object, name: str) -> list[int | None]:
    """Extents; one of them may be -1 or None, which takes what is left."""
    given = value if isinstance(value, tuple) else (value,)
    extents: list[int | None] = []
    for item in given:
        free = item is None or (item == -1 and not isinstance(item, bool))
        extents.append(None if free else arguments.count(item, name, most=2**60))
    if extents.count(None) > 1:
        raise ValueError(f"{name} can leave one extent open, not {extents.count(None)}")
    return extents


def for_channels(value: object, name: str) -> list[float]:
    """One number, or one for each channel."""
    given = value if isinstance(value, tuple) else (value,)
    if not given:
        raise ValueError(f"{name} is empty; give one number for each channel")
    return [number(item, name) for item in given]


def probability(value: object, name: str) -> float:
    return number(value, name, least=0, most=1)


def interpolation(value: object, name: str) -> str:
    """A name, torchvision's `InterpolationMode`, or Pillow's number."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = _PILLOW.get(int(value), value)
    given = getattr(value, "value", value)
    return arguments.choice(given, name, INTERPOLATIONS)


def dtype(value: object, name: str, among: Sequence[str] = DTYPES) -> str:
    """A name, or a dtype of torch, numpy or JAX."""
    given = value
    if getattr(value, "isnative", True) is False:
        raise ValueError(f"{name} has to be in the machine's byte order, not {_shown(value)}")
    if not isinstance(value, str):
        given = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
        given = str(given).removeprefix("torch.")
        if given not in DTYPES:
            raise TypeError(f'{name} has to be a dtype such as "{among[-1]}", not {_shown(value)}')
    return arguments.choice(given, name, among)


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
