"""The order of torch's `DataLoader(shuffle=True)` without a generator.

torch then draws from its default generator, which dropout and the user's own code draw from too: a
base seed when an epoch begins, and a number that seeds the generator of this epoch's permutation.
So an epoch is certain only once it begins.

The engine reads ahead on a guess: between two epochs the program draws as much as it did last time.
Most programs do, since every epoch does the same work. If the guess was wrong when an epoch begins,
the engine starts again with the right order. The order is torch's in all cases; a wrong guess only
wastes what was read ahead.

A run of one process that continues with several shares the rest of its epoch among them. Later
epochs are drawn from seed + epoch, as with `DistributedSampler`."""

from __future__ import annotations

from array import array
from typing import Any

from .. import _native
from .._native import GeneratorState
from . import generator_state
from .order import Order
from .sharding import Sharding

#: Words that the base seed takes; the sampler's seed takes as many.
_NUMBER = generator_state.BASE_SEED_WORDS


class DefaultGeneratorOrder(Order):
    """`RandomSampler(data)` within a `DataLoader`, both drawing from torch's default generator."""

    def __init__(
        self, *, samples: int, batch: int, drop_last: bool, persistent: bool, sharding: Sharding
    ) -> None:
        self.identity = {"kind": "torch"}
        self._sharding = sharding
        self._samples = samples
        self._batch = batch
        self._drop_last = drop_last
        #: Persistent workers are seeded once, so later epochs draw no base seed.
        self._persistent = persistent
        self._has_base_seed = False
        #: Words that the program draws between the loader's own draws of two epochs.
        self._between = 0
        self._begun: tuple[int, int] | None = None  # the epoch, and its seed
        self._after: GeneratorState | None = None  # the generator after the epoch's own draws
        #: By epoch: the expected state of the generator when it begins.
        self._states: dict[int, GeneratorState] = {}
        self._resumed: tuple[int, int] | None = None
        self.native = self._ahead(0)

    def start(self, epoch: int, batch: int, cut: int | None, samples: int) -> _native.Orders:
        self.native = self._ahead(epoch)
        if cut is None:
            return self.native.start_at(0, batch)
        return super().start(epoch, batch, cut, samples)

    def _ahead(self, base: int) -> _native.Orders:
        def epoch(later: int) -> tuple[Any, None]:
            return self._mine(base + later), None

        return _native.Orders.python(
            epoch,
            samples=self._samples,
            batch=self._batch,
            drop_last=self._drop_last,
            largest_batch=self._batch,
        )

    def drawn(self, epoch: int) -> tuple[list[int], list[int]]:
        ids = list(self._mine(epoch))
        return ids, [min(len(ids), (i + 1) * self._batch) for i in range(self.batches(epoch))]

    def _mine(self, epoch: int) -> array[int]:
        """Returns this rank's ids of an epoch."""
        seed = self._seed_of(epoch)
        whole = array("I")
        whole.frombytes(
            _native.Orders.loader(
                samples=self._samples, batch=self._samples, seed=seed, draws="sampler"
            ).ids(0)
        )
        return self._sharding.mine(array("q", whole), None)[0]

    def _seed_of(self, epoch: int) -> int:
        """Returns the seed of an epoch's permutation: known, or guessed."""
        for known in (self._begun, self._resumed):
            if known is not None and known[0] == epoch:
                return known[1]
        if self._sharding.is_on:
            return self._sharding.seed + epoch
        return self._guess(epoch).skip(self._base_words(epoch)).next_int64()

    def _base_words(self, epoch: int) -> int:
        known = self._begun is None or self._begun[0] == epoch
        first = known and not self._has_base_seed
        return 0 if self._persistent and not first else _NUMBER

    def _guess(self, epoch: int) -> GeneratorState:
        """Returns the generator's state when an epoch begins, if the program draws as before."""
        if self._begun is None or self._after is None or epoch <= self._begun[0]:
            return generator_state.read(generator_state.default())
        if epoch not in self._states:
            if epoch == self._begun[0] + 1:
                before = self._after
            else:
                drawn = self._base_words(epoch - 1) + _NUMBER
                before = self._guess(epoch - 1).skip(drawn)
            self._states[epoch] = before.skip(self._between)
        return self._states[epoch]

    def begin(self, epoch: int) -> bool:
        present = generator_state.read(generator_state.default())
        follows = self._begun is not None and self._begun[0] + 1 == epoch
        guessed = follows and (self._sharding.is_on or self._guess(epoch) == present)
        if self._after is not None and not guessed:
            self._between = self._after.words_until(present) or 0
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed[0] == epoch:
            # Its numbers were drawn when it began, before the state was saved.
            seed, guessed = resumed[1], False
            self._after, self._has_base_seed = present, True
        else:
            seed = self._draw(present)
            if self._sharding.is_on:
                seed = self._sharding.seed + epoch
        self._begun = (epoch, seed)
        # Another thread draws ahead, and may add to it meanwhile.
        states = list(self._states.items())
        self._states = {e: s for e, s in states if guessed and e > epoch}
        return not guessed

    def _draw(self, present: GeneratorState) -> int:
        """Moves torch's generator as torch's loader does; returns the seed of the epoch."""
        base = 0 if self._persistent and self._has_base_seed else _NUMBER
        self._has_base_seed = True
        at_seed = present.skip(base)
        self._after = at_seed.skip(_NUMBER)
        generator_state.write(generator_state.default(), self._after)
        return at_seed.next_int64()

    def batches(self, epoch: int) -> int:
        mine = self._sharding.share(self._samples)
        return mine // self._batch if self._drop_last else -(-mine // self._batch)

    def follows_from_number(self, epoch: int) -> bool:
        known = (self._begun, self._resumed)
        return self._sharding.is_on or any(one is not None and one[0] == epoch for one in known)

    def state(self, epoch: int) -> dict[str, Any]:
        for known in (self._begun, self._resumed):
            if known is not None and known[0] == epoch:
                return {"sampler_seed": known[1]}
        return {"sampler_seed": None}  # drawn when the epoch begins, as with torch

    def restore(self, state: dict[str, Any], epoch: int) -> None:
        seed = state.get("sampler_seed")
        if seed is not None and type(seed) is not int:
            raise ValueError(
                f"the sampler's seed in this state is damaged: {seed!r} is no whole number"
            )
        self._begun = self._after = None
        self._states = {}
        self._resumed = None if seed is None else (epoch, seed)
