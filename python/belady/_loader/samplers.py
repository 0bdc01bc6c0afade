"""`loader.sampler` and `loader.batch_sampler` of loaders without samplers of the user.

Training scripts and frameworks call `loader.sampler.set_epoch(epoch)`, and read lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loader import DataLoader


class LoaderSampler:
    """The order of a loader, as a sampler: the ids of this rank."""

    def __init__(self, loader: DataLoader, length: int) -> None:
        self._loader = loader
        self._length = length

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration reads."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        for batch in self._loader.peek():
            yield from batch

    def __len__(self) -> int:
        return self._length


class LoaderBatchSampler:
    """The batches of a loader, as a batch sampler: lists of ids."""

    def __init__(self, loader: DataLoader, sampler: Any) -> None:
        self._loader = loader
        self.sampler = sampler

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch, on this rank."""
        return self._loader.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        return self._loader.drop_last

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration reads."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._loader.peek())

    def __len__(self) -> int:
        return len(self._loader)
