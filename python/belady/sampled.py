"""Orders that come from a sampler of the user's.

A sampler is anything that can be iterated: ids, or lists of ids for a `batch_sampler`. The
engine runs it one epoch ahead on a thread of its own, so that what the next epoch needs is known
while this one is read. If it has `set_epoch`, that is called first. Who calls it himself with
another epoch is followed, if the sampler shows its `epoch`, as those of torch do. An epoch that
was drawn is remembered until it is over, so that starting again in mid-epoch does not draw twice.

torch's random samplers without a generator of their own draw from torch's default one, as
dropout does. Run ahead, they would change what everybody else draws. They are run when the
epoch begins, on the user's thread, exactly where torch runs them, and nothing is known of the
epoch after it: every epoch is a run of its own, that begins with what caches hold. A sampler with a
generator is faster.
"""

from __future__ import annotations

import math
import operator
import sys
import threading
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from . import _native
from .orders import Order

#: Ids of an epoch, and where its batches end (None: every so many).
Drawn = tuple["array[int]", "array[int] | None"]

#: An epoch that repeats every sample so often is taken for one without an end.
_ENDLESS = 100


class SampledOrder(Order):
    """A sampler, or a batch sampler, that is run in Python."""

    identity = {"kind": "sampler"}

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        samples: int,
        batch: int | None,
        drop_last: bool,
        base_seed: Callable[[], None],
    ) -> None:
        self._sampler = sampler
        self._samples = samples
        self._batch = batch
        self._drop_last = drop_last
        self._base_seed = base_seed
        self._ahead = not draws_from_default_generator(sampler)
        self._drawn: dict[int, Drawn] = {}
        #: Epochs that a sampler without `set_epoch` has gone through.
        self._runs = 0
        #: Epochs that the sampler may show without telling us anything new: what we told it
        #: last, and before (it begins with 0 by itself), and what it showed when an epoch began.
        self._told = (0, 0)
        self._followed: object = 0
        self._lock = threading.Lock()
        self.native = _native.Orders.python(
            self._epoch,
            samples=samples,
            batch=batch,
            drop_last=drop_last,
            largest_batch=batch,
        )

    def upcoming(self, epoch: int) -> int:
        if not hasattr(self._sampler, "set_epoch"):
            return epoch
        shown = getattr(self._sampler, "epoch", None)
        if type(shown) is not int or shown < 0 or shown in (*self._told, self._followed):
            return epoch
        return shown

    def begin(self, epoch: int) -> bool:
        self._base_seed()
        with self._lock:
            self._drawn = {e: drawn for e, drawn in self._drawn.items() if e >= epoch}
            self._draw(epoch)
            self._followed = getattr(self._sampler, "epoch", None)
        return not self._ahead

    def _epoch(self, epoch: int) -> Drawn | None:
        """Called by the engine, on a thread of its own."""
        with self._lock:
            known = self._ahead or epoch in self._drawn
            return self._draw(epoch) if known else None

    def _draw(self, epoch: int) -> Drawn:
        if epoch not in self._drawn:
            self._drawn[epoch] = self._run(epoch)
        return self._drawn[epoch]

    def _run(self, epoch: int) -> Drawn:
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if set_epoch is not None:
            self._told = (self._told[0], epoch)
            set_epoch(epoch)
            self._told = (epoch, epoch)
        elif self._ahead:
            # A checkpoint goes on in a later epoch: those before it are drawn and let go.
            for _ in range(epoch - self._runs):
                for _ in self._sampler:
                    pass
            self._runs = epoch + 1
        drawn = self._listed(epoch)
        self._refuse_early_end(drawn, epoch)
        return drawn

    def _listed(self, epoch: int) -> Drawn:
        ids = array("q")
        if self._batch is not None:
            who = f"sampler, in epoch {epoch},"
            self._append(ids, self._sampler, who, self._most_ids())
            return ids, None
        who, most, ends = f"batch_sampler, in epoch {epoch},", self._most_ids(), array("q")
        for batch in self._sampler:
            self._append(ids, batch, who, most)
            ends.append(len(ids))
        return ids, ends

    def _most_ids(self) -> float:
        """More than so many are taken for an epoch without an end."""
        length = _length(self._sampler)
        if length is None:
            return _ENDLESS * self._samples
        return max(length, _ENDLESS * self._samples) if self._batch is not None else math.inf

    def _append(self, ids: array[int], given: Iterable[Any], who: str, most: float) -> None:
        for item in given:
            if not hasattr(item, "__index__"):
                raise TypeError(
                    f"{who} gave {item!r} ({type(item).__name__}) at position {len(ids)}; "
                    "it has to give ids of samples, which are whole numbers"
                )
            sample = operator.index(item)
            if not 0 <= sample < self._samples:
                raise IndexError(
                    f"{who} gave {sample} at position {len(ids)}, but the dataset has "
                    f"{self._samples} samples, numbered from 0"
                )
            ids.append(sample)
            if len(ids) > most:
                raise ValueError(
                    f"{who} has given {len(ids)} ids of {self._samples} samples and goes on; "
                    "an endless sampler has to be cut into epochs"
                )

    def _refuse_early_end(self, drawn: Drawn, epoch: int) -> None:
        units = len(drawn[0]) if drawn[1] is None else len(drawn[1])
        promised = _length(self._sampler)
        if promised is not None and units < promised:
            raise ValueError(
                f"the sampler has a length of {promised}, but ended after {units} in epoch {epoch}"
            )
        if units == 0:
            raise ValueError(
                f"the sampler gave nothing in epoch {epoch}; a generator can be gone through only "
                "once, so pass a list, or an object whose __iter__ begins anew"
            )

    def batches(self, epoch: int) -> int | None:
        drawn = self._drawn.get(epoch)
        if drawn is not None:
            return len(drawn[1]) if drawn[1] is not None else self._cut(len(drawn[0]))
        length = _length(self._sampler)
        return None if length is None else self._cut(length)

    def _cut(self, length: int) -> int:
        if self._batch is None:
            return length
        return length // self._batch if self._drop_last else -(-length // self._batch)


def _length(sampler: object) -> int | None:
    try:
        return len(sampler)  # type: ignore[arg-type]
    except TypeError:
        return None


def draws_from_default_generator(sampler: object) -> bool:
    """Whether it is one of torch's random samplers without a generator of its own."""
    module: Any = sys.modules.get("torch.utils.data.sampler")
    if module is None:
        return False
    if isinstance(sampler, module.BatchSampler):
        return draws_from_default_generator(sampler.sampler)
    kinds = (module.RandomSampler, module.SubsetRandomSampler, module.WeightedRandomSampler)
    return isinstance(sampler, kinds) and getattr(sampler, "generator", None) is None
