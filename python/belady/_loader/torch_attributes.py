"""The attributes of torch's `DataLoader`, for programs and frameworks that read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._configuration.loader_options import LoaderArguments, Options
from .._dataset.dataset import Dataset
from .._orders.selection import OrderSelection
from .._orders.weighted import Mixture


class TorchAttributes:
    """What torch's loader shows, from a loader's arguments."""

    _given: LoaderArguments
    _data: Dataset
    _options: Options
    _selection: OrderSelection

    @property
    def dataset(self) -> Any:
        """The dataset as given; that of a mixture."""
        return self._data if isinstance(self._given.dataset, Mixture) else self._given.dataset

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch on this rank; None with a batch sampler."""
        return None if self._given.batch_sampler is not None else self._selection.batch

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        return self._selection.drop_last

    @property
    def num_workers(self) -> int:
        """The number of worker processes, as given."""
        return self._options.workers

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        """The function as given."""
        return self._options.collate_fn

    @property
    def generator(self) -> Any:
        """The generator as given."""
        return self._given.generator

    @property
    def pin_memory(self) -> bool:
        """Whether tensors are copied to pinned memory."""
        return self._options.pin_memory

    @property
    def prefetch_factor(self) -> int | None:
        """Batches that each worker process, or all threads together, decode ahead.

        As with torch, None without workers unless it was given.
        """
        named = self._given.prefetch_factor is not None
        return self._options.prefetch if named or self._options.workers > 0 else None

    @property
    def worker_init_fn(self) -> Callable[[int], Any] | None:
        """The function as given."""
        return self._options.worker_init_fn

    @property
    def multiprocessing_context(self) -> Any:
        """How worker processes are started, as a context; None unless it was given."""
        named = self._given.multiprocessing_context is not None
        return self._options.context if named else None

    @property
    def persistent_workers(self) -> bool:
        """As given; worker processes live across epochs in any case."""
        return bool(self._given.persistent_workers)

    @property
    def pin_memory_device(self) -> str:
        """As given."""
        return str(self._given.pin_memory_device)

    @property
    def in_order(self) -> bool:
        """As given; batches come in order in any case."""
        return bool(self._given.in_order)

    @property
    def timeout(self) -> float:
        """Seconds after which a batch that has not come is an error; 0 for never."""
        return self._options.timeout
