"""Orders that come from a sampler of the user's.

A sampler is anything that can be iterated: ids, or lists of ids for a `batch_sampler`. The
engine runs it one epoch ahead on a thread of its own, so that what the next epoch needs is known
while this one is read. If it has `set_epoch`, that is called first. A user who calls it himself with
another epoch is followed, if the sampler shows its `epoch`, as those of torch do. An epoch that
was drawn is remembered until it is over, so that starting again in mid-epoch does not draw twice.

torch's random samplers without a generator of their own draw from torch's default one, as
dropout does. Run ahead, they would change what the rest of the program draws. They are run when the
epoch begins, on the user's thread, exactly where torch runs them, and nothing is known of the
epoch after it: every epoch is a run of its own, that begins with what caches hold. A sampler with a
generator is faster.

Several processes deal out what the sampler gives, as `Deal` says.

A checkpoint in mid-epoch carries the state of the generator that the epoch was drawn with, and a
digest of what was drawn. A sampler that then gives another order is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import operator
import struct
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import _native, generator as twister
from .dealing import Deal, draws_from, torch_sampler
from .generator import State
from .orders import Order

#: Ids of an epoch, and where its batches end (None: every so many).
Drawn = tuple["array[int]", "array[int] | None"]

#: An epoch that repeats every sample so often is taken for one without an end.
_ENDLESS = 100


class SampledOrder(Order):
    """A sampler, or a batch sampler, that is run in Python."""

    identity = {"kind": "sampler"}
    repeats = True

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        samples: int,
        batch: int | None,
        drop_last: bool,
        base_seed: Callable[[], None],
        deal: Deal | None = None,
    ) -> None:
        self._sampler = sampler
        self._deal = deal or Deal()
        self._samples = samples
        self._batch = batch
        self._drop_last = drop_last
        self._base_seed = base_seed
        self._ahead = self._deal.is_dealt or draws_from(sampler) != "default"
        self._drawn: dict[int, Drawn] = {}
        #: Of epochs that were drawn: the generator's state before, and a digest of what came.
        self._before: dict[int, State | None] = {}
        self._digests: dict[int, str] = {}
        #: The epoch of which batches were delivered, as far as this or an earlier process knows.
        self._in_epoch: int | None = None
        #: What a checkpoint says of the epoch that is drawn next.
        self._resumed: tuple[int, State | None, str | None] | None = None
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
        self._draw_base_seed()
        with self._lock:
            for known in (self._drawn, self._before, self._digests):
                for earlier in [e for e in known if e < epoch]:
                    del known[earlier]
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
        elif self._ahead and not self._deal.numbers(self._sampler):
            # A checkpoint goes on in a later epoch: those before it are drawn and let go.
            for _ in range(epoch - self._runs):
                for _ in self._sampler:
                    pass
            self._runs = epoch + 1
        with self._generator_of(epoch):
            whole = self._listed(epoch)
        self._refuse_early_end(whole, epoch)
        self._digests[epoch] = _digest(whole)
        self._refuse_another_order(epoch)
        return self._deal.mine(*whole)

    @contextlib.contextmanager
    def _generator_of(self, epoch: int) -> Iterator[None]:
        """Where one of torch's samplers draws this epoch from; where it begins is kept."""
        sampler, source = torch_sampler(self._sampler), draws_from(self._sampler)
        self._before[epoch] = None
        if sampler is None or source is None:
            yield
        elif source == "default" and self._deal.is_dealt:
            with self._deal.common_generator(sampler, epoch):
                yield
        else:
            yield from self._drawing(twister.of(sampler), epoch, keeps=source == "default")

    def _drawing(self, generator: Any, epoch: int, *, keeps: bool) -> Iterator[None]:
        present = twister.read(generator)
        saved = self._resumed[1] if self._resumed is not None and self._resumed[0] == epoch else None
        if saved is not None:
            twister.write(generator, saved)
        self._before[epoch] = saved or present
        try:
            yield
        finally:
            if keeps and saved is not None:
                # The rest of the program draws on from where it is.
                twister.write(generator, present)

    def _refuse_another_order(self, epoch: int) -> None:
        if self._resumed is None or self._resumed[0] != epoch:
            return
        promised = self._resumed[2]
        if promised not in (None, self._digests[epoch]):
            raise ValueError(
                f"the sampler gives another order in epoch {epoch} than it gave when the state was "
                "saved, so samples would be repeated or left out; seed what it draws from as it was "
                "seeded then, or load a state that was saved between two epochs"
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
                before = twister.read(twister.of(torch_sampler(self._sampler)))
            begun = self._in_epoch == epoch
            if draws_from(self._sampler) == "default" and not begun:
                before = None  # it will draw from wherever torch's generator is then, as with torch
            return {
                "generator": None if before is None else before.text(),
                "digest": self._digests.get(epoch) if begun else None,
                "dealt": self._deal.identity(batches=self._batch is None),
            }

    def restore(self, state: dict[str, Any], epoch: int) -> None:
        if "digest" not in state:
            raise ValueError(
                "this state does not say what its sampler drew, so what is left of the epoch is not "
                "known; load a state that this version of belady has saved"
            )
        same_place = self._deal.refuse_another(state["dealt"], batches=self._batch is None)
        try:
            text = state["generator"]
            before = None if text is None else State.from_text(text)
        except (TypeError, ValueError, struct.error) as error:
            raise ValueError(f"the state of the generator in this state is broken: {error}") from error
        if before is not None and state["digest"] is not None and not same_place:
            raise ValueError(
                "the sampler of each rank draws an order of its own, and this state was saved by another "
                "rank, or with another number of ranks; save a state on every rank, and load there what "
                "was saved there"
            )
        with self._lock:
            self._drawn, self._before, self._digests = {}, {}, {}
            self._in_epoch = epoch if state["digest"] is not None else None
            self._resumed = (epoch, before, state["digest"] if same_place else None)
            if before is not None:
                self._runs = epoch

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
        return None if length is None else self._cut(self._deal.share(length))

    def _cut(self, length: int) -> int:
        if self._batch is None:
            return length
        return length // self._batch if self._drop_last else -(-length // self._batch)


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
