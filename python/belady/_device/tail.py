"""The tail of a chain: the steps that run on the device.

Pixels travel as bytes. If a chain ends by converting them to floats, and perhaps normalising them,
the device does that: a quarter of the bytes is moved, or half of them for float16."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _native
from ..transforms._chain import Chain
from ..transforms.compose import as_json_text
from ..transforms.numbers import Normalize, ToTensor


class Tail(NamedTuple):
    """The steps on the device."""

    #: The layout of the result.
    layout: str
    #: The number of each byte in each channel [256, C], exactly as the processor computes it.
    table: _native.Array


def split(chain: Chain) -> tuple[Chain, Tail | None]:
    """Splits a chain into the part for the processor, which gives bytes [H, W, C], and the tail.

    Without a tail, or if the shape of the result is not known, the chain stays whole.

    >>> from belady import transforms as T
    >>> chain, tail = split(Chain([T.Decode(), T.CenterCrop(4), T.ToTensor()]))
    >>> chain.steps[-1], tail.layout, tail.table.shape
    (ToTensor(dtype='uint8', layout='HWC'), 'CHW', (1, 256, 3))
    """
    whole = chain.whole if chain.native else None
    shape = None if whole is None else whole.output[1]
    steps = list(chain.steps)
    last = steps.pop() if steps else None
    normalize = [last] if isinstance(last, Normalize) else []
    tensor = steps.pop() if normalize and steps else last
    if not isinstance(tensor, ToTensor) or tensor.dtype == "uint8" or shape is None:
        return chain, None
    channels = shape[0] if tensor.layout == "CHW" else shape[2]
    table = _table([ToTensor(tensor.dtype, "HWC"), *normalize], channels)
    return Chain([*steps, ToTensor("uint8", "HWC")]), Tail(tensor.layout, table)


def _table(steps: list[Any], channels: int) -> _native.Array:
    """Runs the last steps on all bytes, as an image of one row."""
    row = bytes(byte for byte in range(256) for _ in range(channels))
    chain = _native.Chain(as_json_text(steps), before=1)
    return chain.run_array(row, "uint8", (1, 256, channels), 0, 0, 0)
