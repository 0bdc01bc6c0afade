"""What Accelerate, and with it the Trainer of Hugging Face, does with a loader.

- `accelerator.prepare(loader)` gives the loader back: it knows its rank, and `device=` moves its batches.
- `gather_for_metrics` and gradient accumulation ask Accelerate's `GradientState` whether a loader is at its
  last batch, and how many samples of that are not padding. `Seat` answers for a loader while it is
  iterated. `gather_for_metrics` lays what the ranks have end to end and cuts the padding off the end, so
  several processes share out batches in parts (`scheme="parts"`) where Accelerate is used.
- `skip_first_batches(loader, n)` makes a `torch.utils.data.DataLoader` from the attributes of any loader. Nothing
  that a loader can show would make that one decode in native threads and read through caches. So
  `watch_skips` replaces the name by which Accelerate's module makes it: for the batch sampler of one of our
  loaders it gives `Skipped`, for all others torch's own.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .loader import DataLoader


def in_use() -> bool:
    """Whether the program has made an `Accelerator`, or the state that one has."""
    module: Any = sys.modules.get("accelerate.state")
    return module is not None and bool(module.PartialState._shared_state)


#: Nothing is cut off then.
UNKNOWN = -1


class Padding(NamedTuple):
    """What makes the ranks' parts of an epoch equally long."""

    #: Of the epoch, of all ranks.
    samples: int
    #: Those of them that are given again at its end.
    repeated: int


def remainder(padding: Padding, ranks: int, batch: int, batches: int, in_parts: bool) -> int:
    """Samples of the last batch of all ranks that are not padding, as Accelerate counts: 0 if none is padding.

    Where every rank has every so many-th sample, the padding of several ranks is not at the end when
    their samples are laid end to end, and cannot be cut off there.

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


class Seat:
    """A loader as Accelerate's `GradientState` knows it."""

    def __init__(self) -> None:
        #: Whether the last batch of the epoch is with the user.
        self.end_of_dataloader = False
        self.remainder = UNKNOWN
        self._is_known = False

    def begin(self, remainder: int) -> None:
        """The loader begins an epoch."""
        self.end_of_dataloader, self.remainder = False, remainder
        state = _gradient_state()
        if state is not None:
            state._add_dataloader(self)
            self._is_known = True

    def end(self) -> None:
        """The epoch is over, or was left."""
        state = _gradient_state()
        if state is not None and self._is_known:
            state._remove_dataloader(self)
        self._is_known = False


def _gradient_state() -> Any:
    module: Any = sys.modules.get("accelerate.state")
    made = module is not None and module.GradientState._shared_state
    return module.GradientState() if made else None


class Skipped:
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


#: The loader whose batch sampler was asked for last, and the number of the object that it showed.
_asked: tuple[weakref.ref[DataLoader], int] | None = None


def watch_skips(loader: DataLoader, batch_sampler: Any) -> None:
    """The loader shows its batch sampler: if `skip_first_batches` asks for it, it is to give one of ours."""
    global _asked
    module: Any = sys.modules.get("accelerate.data_loader")
    torchs = getattr(module, "DataLoader", None)
    if torchs is None:
        return
    _asked = weakref.ref(loader), id(batch_sampler)
    if hasattr(torchs, "gives_ours"):
        return

    def made(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        skipped = _skipped(module, dataset, kwargs.get("batch_sampler"))
        return torchs(dataset, *args, **kwargs) if skipped is None else skipped

    made.gives_ours = True  # type: ignore[attr-defined]
    module.DataLoader = made


def _skipped(module: Any, dataset: Any, batch_sampler: Any) -> Skipped | None:
    loader = _asked[0]() if _asked is not None else None
    if _asked is None or loader is None or not isinstance(batch_sampler, module.SkipBatchSampler):
        return None
    ours = loader.dataset is dataset and id(batch_sampler.batch_sampler) == _asked[1]
    return Skipped(loader, batch_sampler.skip_batches) if ours else None
