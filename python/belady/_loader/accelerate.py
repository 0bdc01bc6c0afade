"""Hugging Face Accelerate, and with it the Trainer.

- `accelerator.prepare(loader)` returns the loader unchanged: it knows its rank, and `device=` moves
  its batches.
- `gather_for_metrics` and gradient accumulation ask Accelerate's `GradientState` whether a loader
  is at its last batch, and how many of its samples are not padding. `Registration` answers for a
  loader while it is iterated. `gather_for_metrics` lays the ranks' batches end to end and cuts the
  padding off, so ranks share batches in parts (`scheme="parts"`) where Accelerate is used.
- `skip_first_batches(loader, n)` makes a `torch.utils.data.DataLoader` from the attributes of any
  loader. That one would neither decode in native threads nor read through caches. So `watch_skips`
  replaces `DataLoader` in Accelerate's module: for the batch sampler of a belady loader it makes a
  `SkippedLoader`, for all others torch's own.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .loader import DataLoader


def in_use() -> bool:
    """Whether the program has made an `Accelerator`, or its state."""
    module: Any = sys.modules.get("accelerate.state")
    return module is not None and bool(module.PartialState._shared_state)


#: The padding is not known; Accelerate then cuts nothing off.
UNKNOWN = -1


class Padding(NamedTuple):
    """The padding that makes the ranks' parts of an epoch equally long."""

    #: Samples of the epoch, on all ranks.
    samples: int
    #: Samples that come again at its end.
    repeated: int


def remainder(padding: Padding, ranks: int, batch: int, batches: int, in_parts: bool) -> int:
    """Returns the samples of all ranks' last batch that are not padding; 0 if none is padding.

    If every rank has every n-th sample, the padding of several ranks is not at the end when their
    samples are laid end to end, and Accelerate cannot cut it off.

    >>> remainder(Padding(105, 1), ranks=2, batch=16, batches=4, in_parts=False)
    9
    """
    mine = (padding.samples + padding.repeated) // ranks
    dropped = max(0, mine - batches * batch)
    repeated = max(0, padding.repeated - dropped * ranks)
    if repeated == 0:
        return 0
    if repeated > 1 and not in_parts:
        return UNKNOWN
    return (mine - dropped - (batches - 1) * batch) * ranks - repeated


class Registration:
    """A loader's entry in Accelerate's `GradientState`."""

    def __init__(self) -> None:
        #: Whether the last batch of the epoch was delivered.
        self.end_of_dataloader = False
        self.remainder = UNKNOWN
        self._is_registered = False

    def begin(self, remainder: int) -> None:
        """The loader begins an epoch."""
        self.end_of_dataloader, self.remainder = False, remainder
        state = _gradient_state()
        if state is not None:
            state._add_dataloader(self)
            self._is_registered = True

    def end(self) -> None:
        """The epoch ended, or was left."""
        state = _gradient_state()
        if state is not None and self._is_registered:
            state._remove_dataloader(self)
        self._is_registered = False


def _gradient_state() -> Any:
    module: Any = sys.modules.get("accelerate.state")
    made = module is not None and module.GradientState._shared_state
    return module.GradientState() if made else None


class SkippedLoader:
    """A loader whose epochs begin after so many batches."""

    def __init__(self, loader: DataLoader, batches: int) -> None:
        self._loader = loader
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        self._loader.skip_to(self._batches)
        return iter(self._loader)

    def __len__(self) -> int:
        return max(0, len(self._loader) - self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


#: The loader whose batch sampler was read last, and the id of that sampler.
_last_shown: tuple[weakref.ref[DataLoader], int] | None = None


def watch_skips(loader: DataLoader, batch_sampler: Any) -> None:
    """Makes `skip_first_batches` of this batch sampler return a `SkippedLoader`."""
    global _last_shown
    module: Any = sys.modules.get("accelerate.data_loader")
    torch_loader = getattr(module, "DataLoader", None)
    if torch_loader is None:
        return
    _last_shown = weakref.ref(loader), id(batch_sampler)
    if hasattr(torch_loader, "is_beladys"):
        return

    def made(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        skipped = _skipped(module, dataset, kwargs.get("batch_sampler"))
        return torch_loader(dataset, *args, **kwargs) if skipped is None else skipped

    made.is_beladys = True  # type: ignore[attr-defined]
    module.DataLoader = made


def _skipped(module: Any, dataset: Any, batch_sampler: Any) -> SkippedLoader | None:
    loader = _last_shown[0]() if _last_shown is not None else None
    if (
        _last_shown is None
        or loader is None
        or not isinstance(batch_sampler, module.SkipBatchSampler)
    ):
        return None
    ours = loader.dataset is dataset and id(batch_sampler.batch_sampler) == _last_shown[1]
    return SkippedLoader(loader, batch_sampler.skip_batches) if ours else None
