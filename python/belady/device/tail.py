"""The steps of a chain that are better done where a batch is used.

Pixels travel as bytes. If a chain ends by making floats of them, and perhaps normalising them,
that is left to the device: a quarter of the bytes is moved, or half of them for float16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_FLOATS = ("float32", "float16", "bfloat16")


class Tail(NamedTuple):
    """What is left to do with pixels: `(x / 255 - mean) / std`."""

    dtype: str
    layout: str
    mean: list[float]
    std: list[float]


def split(steps: Sequence[dict[str, Any]], channels: int) -> tuple[list[dict[str, Any]], Tail | None]:
    """The steps for the processor, and what is left for the device.

    >>> steps = [{"op": "Decode"}, {"op": "ToTensor", "dtype": "float32", "layout": "CHW"}]
    >>> split(steps, channels=1)
    ([{'op': 'Decode'}, {'op': 'ToTensor', 'dtype': 'uint8', 'layout': 'HWC'}], \
Tail(dtype='float32', layout='CHW', mean=[0.0], std=[1.0]))
    """
    kept = list(steps)
    mean, std = [0.0] * channels, [1.0] * channels
    if kept and kept[-1]["op"] == "Normalize":
        normalize = kept.pop()
        mean, std = list(normalize["mean"]), list(normalize["std"])
    if not kept or kept[-1]["op"] != "ToTensor" or kept[-1]["dtype"] not in _FLOATS:
        return list(steps), None
    tensor = kept.pop()
    kept.append({"op": "ToTensor", "dtype": "uint8", "layout": "HWC"})
    return kept, Tail(tensor["dtype"], tensor["layout"], mean, std)
