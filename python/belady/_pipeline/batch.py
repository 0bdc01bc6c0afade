"""The batches of a loader.

A `Batch` is a tuple of collated fields, so `for images, labels in loader` works. It also has the
ids and paths of its samples, which `batch.to(device)` keeps; Lightning and Accelerate move batches
so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .. import _native

if TYPE_CHECKING:
    from .._dataset.dataset import Dataset

Sample = _native.Sample

_UNKNOWN = (
    "this batch was made from another one and has no ids and paths; "
    "take them from the batch that the loader gave"
)


class Batch(tuple[Any, ...]):
    """A batch: `(samples, labels)`, or what `decode` and `collate_fn` made of them.

    >>> loader = belady.DataLoader(belady.open(photos), batch_size=4)
    >>> batch = next(iter(loader))
    >>> batch.ids, batch.epoch, batch.iteration
    ([0, 1, 2, 3], 0, 0)
    """

    #: The native batch, as long as its samples are lent.
    _source: _native.Batch | None
    #: The dataset, for paths.
    _dataset: Dataset | None
    _ids: list[int] | None
    _paths: list[str] | None
    _epoch: int | None
    _iteration: int | None

    def __new__(cls, fields: Iterable[Any] = ()) -> Batch:
        self = super().__new__(cls, fields)
        self._source = self._dataset = self._ids = self._paths = None
        self._epoch = self._iteration = None
        return self

    @property
    def ids(self) -> list[int]:
        """Ids of the samples: without those that were skipped, with substitutes."""
        if self._ids is None and self._source is not None:
            self._ids = self._source.ids
        if self._ids is None:
            raise AttributeError(_UNKNOWN)
        return self._ids

    @property
    def paths(self) -> list[str]:
        """The paths of the samples."""
        if self._paths is None:
            if self._dataset is None:
                raise AttributeError(_UNKNOWN)
            paths = self._dataset.paths
            self._paths = [paths[sample] for sample in self.ids]
        return self._paths

    @property
    def samples(self) -> Any:
        """The first field: buffers, or what `decode` made of them."""
        return self[0]

    @property
    def labels(self) -> Any:
        """The second field."""
        return self[1]

    @property
    def epoch(self) -> int | None:
        """The epoch of the batch."""
        return self._epoch

    @property
    def iteration(self) -> int | None:
        """The number of the batch within its epoch."""
        return self._iteration

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Moves all tensors, as `tensor.to` does."""
        return self._map(lambda tensor: tensor.to(*args, **kwargs), "to")

    def pin_memory(self, device: str | None = None) -> Batch:
        """Copies all tensors to pinned memory, from which accelerators copy faster."""
        return self._map(lambda tensor: tensor.pin_memory(), "pin_memory")

    def _map(self, function: Callable[[Any], Any], method: str) -> Batch:
        moved = Batch(_applied(function, method, field) for field in self)
        moved.__dict__.update(self.__dict__)
        return moved

    def __reduce__(self) -> tuple[Any, ...]:
        known: dict[str, Any] = {
            "_ids": None,
            "_paths": None,
            "_epoch": self._epoch,
            "_iteration": self._iteration,
        }
        if self._source is not None or self._ids is not None:
            known |= {"_ids": self.ids, "_paths": self.paths}
        return _restored, (tuple(self), known)


def _restored(fields: tuple[Any, ...], known: dict[str, Any]) -> Batch:
    batch = Batch(fields)
    batch.__dict__.update(known)
    return batch


def _applied(function: Callable[[Any], Any], method: str, value: Any) -> Any:
    """Applies the function to everything that has the method, within lists and dicts too."""
    if hasattr(value, method):
        return function(value)
    if isinstance(value, dict):
        return {key: _applied(function, method, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_applied(function, method, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_applied(function, method, item) for item in value)
    return value
