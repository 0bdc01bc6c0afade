"""Makes tensors of torch from samples, without a copy where that is safe.

    loader = belady.DataLoader(data, batch_size=64, collate_fn=belady.torch.stack)
    for images, labels in loader:       # uint8 [64, bytes of a sample], int64 [64]

torch ignores read-only memory: an in-place operation writes to any memory of a tensor. So tensors
lie on slots of the staging buffer, which are yours until you release them, or on copies; never on a
cache.

>>> import belady, belady.torch
>>> data = belady.records(numbers, 64)
>>> loader = belady.DataLoader(data, batch_size=4, collate_fn=belady.torch.stack)
>>> next(iter(loader))[0].shape
torch.Size([4, 64])
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.dlpack

from . import _native
from ._pipeline.batch import Batch


def tensor(sample: _native.Sample) -> torch.Tensor:
    """Returns the bytes of a sample as a tensor of uint8."""
    made: torch.Tensor = torch.utils.dlpack.from_dlpack(sample)
    return made


def labels(batch: _native.Batch) -> torch.Tensor:
    """Returns the labels of a batch as int64; -1 for none."""
    return torch.frombuffer(bytearray(batch.labels_bytes()), dtype=torch.int64)


class Stack:
    """A `collate_fn` for samples that are raw arrays of one dtype and shape."""

    takes_batch = True
    __name__ = "belady.torch.Stack"

    def __init__(
        self, dtype: torch.dtype = torch.uint8, shape: Sequence[int] | None = None
    ) -> None:
        self.dtype = dtype
        self.shape = None if shape is None else tuple(shape)

    def __call__(self, batch: _native.Batch) -> tuple[torch.Tensor, torch.Tensor]:
        whole = batch.stacked()
        if whole is not None:
            data: torch.Tensor = torch.utils.dlpack.from_dlpack(whole)
        else:
            data = torch.stack(_equal([tensor(sample) for sample in batch.samples()], batch))
        data = data.view(self.dtype)
        if self.shape is not None:
            data = data.view(len(batch), *self.shape)
        return data, labels(batch)


#: The unchanged bytes: uint8 of two dimensions.
stack = Stack()


def tensors(batch: _native.Batch) -> tuple[list[torch.Tensor], torch.Tensor]:
    """A `collate_fn` for samples of any size: returns a list of tensors of uint8, and labels."""
    return [tensor(sample) for sample in batch.samples()], labels(batch)


tensors.takes_batch = True  # type: ignore[attr-defined]


def _equal(made: list[torch.Tensor], batch: _native.Batch) -> list[torch.Tensor]:
    for index, one in enumerate(made):
        if len(one) != len(made[0]):
            paths = batch.paths()
            raise ValueError(
                f"samples of a stack have to be equally long, but {paths[0]} has {len(made[0])} "
                f"bytes and {paths[index]} has {len(one)}; use belady.torch.tensors, or decode"
            )
    return made


def pinned(value: Any) -> Any:
    """Copies all tensors to pinned memory, if there is an accelerator."""
    if not torch.accelerator.is_available():
        warnings.warn("pin_memory=True has no effect: torch finds no accelerator", stacklevel=3)
        return value
    if isinstance(value, Batch):
        return value.pin_memory()
    from torch.utils.data._utils import pin_memory

    return pin_memory.pin_memory(value)  # type: ignore[no-untyped-call]
