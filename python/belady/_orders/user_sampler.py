"""Orders that a sampler of the user gives.

A sampler is anything iterable: ids, or lists of ids for a `batch_sampler`. The engine runs it one
epoch ahead on a separate thread, so that the next epoch is known while this one is read. If it has
`set_epoch`, that is called first. If the user calls `set_epoch` and the sampler shows its `epoch`,
as torch's do, the loader follows. A drawn epoch is kept until it is over, so that a restart within
it does not draw twice.

torch's random samplers without a generator draw from torch's default one, as dropout does. If they
ran ahead, the rest of the program would draw other numbers. They run when the epoch begins, on the
user's thread, exactly where torch runs them, and the epoch after is not known: every epoch is a job
of the engine that begins with what the caches hold. A sampler with a generator is faster.

A sampler that several loaders of a process share is not run ahead either: each loader would take
draws that are the other's under torch.

Several processes share what the sampler gives, as `Sharding` says.

A checkpoint within an epoch has the state of the generator that drew the epoch, and a digest of the
order. A sampler that then gives another order is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import operator
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import _native
from .._native import GeneratorState
from . import generator_state
from .order import Order
from .sharding import Sharding, draws_from, torch_sampler

#: The ids of an epoch, and where its batches end; None if batches are equally long.
Drawn = tuple["array[int]", "array[int] | None"]

#: An epoch that repeats every sample more often is taken to be endless.
_ENDLESS = 100


class SamplerOrder(Order):
    """A sampler, or a batch sampler, that is run in Python."""

    repeats = True

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        samples: int,
        batch: int | None,
        drop_last: bool,
        base_seed: Callable[[], None],
        sharding: Sharding | None = None,
    ) -> None:
        self.identity = {"kind": "sampler"}
        self._sampler = sampler
        self._sharding = sharding or Sharding()
        self._samples = samples
        self._batch = batch
        self._drop_last = drop_last
        self._base_seed = base_seed
        self._ahead = self._sharding.is_on or draws_from(sampler) != "default"
        #: Whether another loader has the same sampler.
        self._is_shared = False
        for other in [order for order in _LIVE if order._sampler is sampler]:
            self._is_shared = other._is_shared = True
        _LIVE.add(self)
        self._drawn: dict[int, Drawn] = {}
        #: Of drawn epochs: the generator's state before, and a digest of the order.
        self._before: dict[int, GeneratorState | None] = {}
        self._digests: dict[int, str] = {}
        #: The epoch of which this or an earlier process delivered batches.
        self._in_epoch: int | None = None
        #: The checkpoint's epoch, generator and digest, until that epoch is drawn.
        self._resumed: tuple[int, GeneratorState | None, str | None] | None = None
        #: Epochs that a sampler without `set_epoch` has given.
        self._runs = 0
        #: Epochs that the sampler shows although the user did not set them: the last two that we
        #: set (it begins with 0 by itself), and the one it showed when an epoch began.
        self._set = (0, 0)
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
        if type(shown) is not int or shown < 0 or shown in (*self._set, self._followed):
            return epoch
        return shown

    def begin(self, epoch: int) -> bool:
        self._draw_base_seed()
        with self._lock:
            for known in (self._drawn, self._before, self._digests):
                for earlier in [e for e in known if e < epoch]:
                    del known[earlier]
            self._draw(epoch)
            self._followed = getattr(self._sampler, "epoch", None)
        return self._is_shared or not self._ahead

    def _epoch(self, epoch: int) -> Drawn | None:
        """Called by the engine, on a separate thread."""
        with self._lock:
            known = (self._ahead and not self._is_shared) or epoch in self._drawn
            return self._draw(epoch) if known else None

    def _draw(self, epoch: int) -> Drawn:
        if epoch not in self._drawn:
            self._drawn[epoch] = self._run(epoch)
        return self._drawn[epoch]

    def _run(self, epoch: int) -> Drawn:
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if set_epoch is not None:
            self._set = (self._set[0], epoch)
            set_epoch(epoch)
            self._set = (epoch, epoch)
        elif self._ahead and not self._sharding.follows_from_number(self._sampler):
            # A checkpoint continues in a later epoch: the ones before are drawn and discarded.
            for _ in range(epoch - self._runs):
                for _ in self._sampler:
                    pass
            self._runs = epoch + 1
        with self._generator_of(epoch):
            whole = self._listed(epoch)
        self._refuse_early_end(whole, epoch)
        self._digests[epoch] = _digest(whole)
        self._refuse_another_order(epoch)
        return self._sharding.mine(*whole)

    @contextlib.contextmanager
    def _generator_of(self, epoch: int) -> Iterator[None]:
        """Lets one of torch's samplers draw an epoch, and records the generator's state before."""
        sampler, source = torch_sampler(self._sampler), draws_from(self._sampler)
        self._before[epoch] = None
        if sampler is None or source is None:
            yield
        elif source == "default" and self._sharding.is_on:
            with self._sharding.common_generator(sampler, epoch):
                yield
        else:
            yield from self._drawing(generator_state.of(sampler), epoch, keeps=source == "default")

    def _drawing(self, generator: Any, epoch: int, *, keeps: bool) -> Iterator[None]:
        present = generator_state.read(generator)
        saved = (
            self._resumed[1] if self._resumed is not None and self._resumed[0] == epoch else None
        )
        if saved is not None:
            generator_state.write(generator, saved)
        self._before[epoch] = saved or present
        try:
            yield
        finally:
            if keeps and saved is not None:
                # The rest of the program continues from where it was.
                generator_state.write(generator, present)

    def _refuse_another_order(self, epoch: int) -> None:
        if self._resumed is None or self._resumed[0] != epoch:
            return
        promised = self._resumed[2]
        if promised not in (None, self._digests[epoch]):
            raise ValueError(
                f"the sampler gives another order in epoch {epoch} than when the state was saved, "
                "so samples would be repeated or left out; seed it as it was seeded then, or load "
                "a state that was saved between two epochs"
            )
        self._resumed = None

    def follows_from_number(self, epoch: int) -> bool:
        resumed = self._resumed is not None and self._resumed[0] == epoch
        return self._ahead or resumed or epoch in self._drawn

    def delivered(self, epoch: int, batches: int) -> None:
        self._in_epoch = epoch

    def state(self, epoch: int) -> dict[str, Any]:
        with self._lock:
            before = self._before.get(epoch)
            if before is None and draws_from(self._sampler) == "own":
                before = generator_state.read(generator_state.of(torch_sampler(self._sampler)))
            begun = self._in_epoch == epoch
            if draws_from(self._sampler) == "default" and not begun:
                before = None  # drawn when the epoch begins, as with torch
            return {
                "generator": None if before is None else generator_state.to_text(before),
                "digest": self._digests.get(epoch) if begun else None,
                "dealt": self._sharding.identity(batches=self._batch is None),
            }

    def restore(self, state: dict[str, Any], epoch: int) -> None:
        if "digest" not in state:
            raise ValueError(
                "this state does not have the digest of its sampler's order, so the rest of the "
                "epoch is not known; load a state that this version of belady saved"
            )
        same_rank = self._sharding.matches(state["dealt"], batches=self._batch is None)
        text = state["generator"]
        before = None if text is None else generator_state.from_text(text)
        if before is not None and state["digest"] is not None and not same_rank:
            raise ValueError(
                "each rank's sampler draws another order, and this state was saved by another rank "
                "or with another number of ranks; save a state on every rank, and load it on the "
                "same rank"
            )
        with self._lock:
            self._drawn, self._before, self._digests = {}, {}, {}
            self._in_epoch = epoch if state["digest"] is not None else None
            self._resumed = (epoch, before, state["digest"] if same_rank else None)
            if before is not None:
                self._runs = epoch

    def _listed(self, epoch: int) -> Drawn:
        ids = array("q")
        if self._batch is not None:
            name = f"sampler, in epoch {epoch},"
            self._append(ids, self._sampler, name, self._most_ids())
            return ids, None
        name, most, ends = f"batch_sampler, in epoch {epoch},", self._most_ids(), array("q")
        for batch in self._sampler:
            self._append(ids, batch, name, most)
            ends.append(len(ids))
        return ids, ends

    def _most_ids(self) -> float:
        """Returns how many ids an epoch may have before it is taken to be endless."""
        length = _length(self._sampler)
        if length is None:
            return _ENDLESS * self._samples
        return max(length, _ENDLESS * self._samples) if self._batch is not None else math.inf

    def _append(self, ids: array[int], given: Iterable[Any], name: str, most: float) -> None:
        for item in given:
            if not hasattr(item, "__index__"):
                raise TypeError(
                    f"{name} gave {item!r} ({type(item).__name__}) at position {len(ids)}; "
                    "it has to give the ids of samples, which are whole numbers"
                )
            sample = operator.index(item)
            if not 0 <= sample < self._samples:
                raise IndexError(
                    f"{name} gave {sample} at position {len(ids)}, but the dataset has "
                    f"{self._samples} samples, numbered from 0"
                )
            ids.append(sample)
            if len(ids) > most:
                raise ValueError(
                    f"{name} has given {len(ids)} ids of {self._samples} samples without an end; "
                    "cut an endless sampler into epochs"
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
                f"the sampler gave nothing in epoch {epoch}; a generator can be iterated only "
                "once, so pass a list, or an object whose __iter__ begins again"
            )

    def batches(self, epoch: int) -> int | None:
        drawn = self._drawn.get(epoch)
        if drawn is not None:
            return len(drawn[1]) if drawn[1] is not None else self._cut(len(drawn[0]))
        length = _length(self._sampler)
        return None if length is None else self._cut(self._sharding.share(length))

    def _cut(self, length: int) -> int:
        if self._batch is None:
            return length
        return length // self._batch if self._drop_last else -(-length // self._batch)


#: The orders of all loaders of this process that run samplers.
_LIVE: weakref.WeakSet[SamplerOrder] = weakref.WeakSet()


def _length(sampler: object) -> int | None:
    try:
        return len(sampler)  # type: ignore[arg-type]
    except TypeError:
        return None


def _digest(drawn: Drawn) -> str:
    ids, ends = drawn
    digest = hashlib.blake2b(ids.tobytes(), digest_size=16)
    if ends is not None:
        digest.update(ends.tobytes())
    return digest.hexdigest()
