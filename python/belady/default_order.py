"""The order of torch's `DataLoader(shuffle=True)` without a generator.

There torch's default generator, which dropout and the user's own code draw from too, gives a base seed
when an epoch begins, and a second number that seeds a generator for this epoch's permutation. So
an epoch is known for certain only when it begins.

The engine reads ahead on a guess: that between two epochs the program draws as much as it did last
time. Most programs do, since they do the same work in every epoch. When an epoch begins and the
guess was wrong, the engine is told anew. So the order is torch's in all cases; only reading ahead is in
vain after a wrong guess.

A run of one process that goes on with several shares out what is left of its epoch. The epochs after it
come from seed + epoch, as `DistributedSampler` has them.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

from . import _native, generator as twister
from .dealing import Deal
from .generator import State
from .orders import Order

#: Words that the base seed takes, and as many the sampler's seed.
_NUMBER = twister.BASE_SEED_WORDS


class DefaultOrder(Order):
    """`RandomSampler(data)` within a `DataLoader`, both drawing from torch's default generator."""

    identity = {"kind": "torch"}

    def __init__(
        self, *, samples: int, batch: int, drop_last: bool, persistent: bool, deal: Deal
    ) -> None:
        self._deal = deal
        self._samples = samples
        self._batch = batch
        self._drop_last = drop_last
        #: Persistent workers are seeded once, so later epochs draw no base seed.
        self._persistent = persistent
        self._has_base_seed = False
        #: Words that the program draws between the loader's own draws of two epochs.
        self._between = 0
        self._begun: tuple[int, int] | None = None  # the epoch, and its seed
        self._after: State | None = None  # where the generator was left when it began
        #: By epoch: where the generator is supposed to be when it begins.
        self._supposed: dict[int, State] = {}
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
        """This rank's ids of an epoch."""
        seed = self._seed_of(epoch)
        whole = array("I")
        whole.frombytes(
            _native.Orders.loader(
                samples=self._samples, batch=self._samples, seed=seed, draws="sampler"
            ).ids(0)
        )
        return self._deal.mine(array("q", whole), None)[0]

    def _seed_of(self, epoch: int) -> int:
        """The number that an epoch's permutation is seeded with, as far as is known now."""
        for known in (self._begun, self._resumed):
            if known is not None and known[0] == epoch:
                return known[1]
        if self._deal.is_dealt:
            return self._deal.seed + epoch
        return self._expected(epoch).skip(self._base_words(epoch)).number()

    def _base_words(self, epoch: int) -> int:
        known = self._begun is None or self._begun[0] == epoch
        first = known and not self._has_base_seed
        return 0 if self._persistent and not first else _NUMBER

    def _expected(self, epoch: int) -> State:
        """Where the generator is when an epoch begins, if the program goes on as it did."""
        if self._begun is None or self._after is None or epoch <= self._begun[0]:
            return twister.read(_default())
        if epoch not in self._supposed:
            if epoch == self._begun[0] + 1:
                before = self._after
            else:
                drawn = self._base_words(epoch - 1) + _NUMBER
                before = self._expected(epoch - 1).skip(drawn)
            self._supposed[epoch] = before.skip(self._between)
        return self._supposed[epoch]

    def begin(self, epoch: int) -> bool:
        present = twister.read(_default())
        follows = self._begun is not None and self._begun[0] + 1 == epoch
        guessed = follows and (self._deal.is_dealt or self._expected(epoch) == present)
        if self._after is not None and not guessed:
            self._between = self._after.words_until(present) or 0
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed[0] == epoch:
            # Its numbers were drawn when it began, before the state was saved.
            seed, guessed = resumed[1], False
            self._after, self._has_base_seed = present, True
        else:
            seed = self._draw(present)
            if self._deal.is_dealt:
                seed = self._deal.seed + epoch
        self._begun = (epoch, seed)
        # Another thread draws ahead, and may add to it meanwhile.
        supposed = list(self._supposed.items())
        self._supposed = {e: s for e, s in supposed if guessed and e > epoch}
        return not guessed

    def _draw(self, present: State) -> int:
        """Moves torch's generator as torch's loader does; the seed of the epoch."""
        base = 0 if self._persistent and self._has_base_seed else _NUMBER
        self._has_base_seed = True
        at_seed = present.skip(base)
        self._after = at_seed.skip(_NUMBER)
        twister.write(_default(), self._after)
        return at_seed.number()

    def batches(self, epoch: int) -> int:
        mine = self._deal.share(self._samples)
        return mine // self._batch if self._drop_last else -(-mine // self._batch)

    def follows_from_number(self, epoch: int) -> bool:
        known = (self._begun, self._resumed)
        return self._deal.is_dealt or any(one is not None and one[0] == epoch for one in known)

    def state(self, epoch: int) -> dict[str, Any]:
        for known in (self._begun, self._resumed):
            if known is not None and known[0] == epoch:
                return {"sampler_seed": known[1]}
        return {"sampler_seed": None}  # it is drawn when the epoch begins, as with torch

    def restore(self, state: dict[str, Any], epoch: int) -> None:
        seed = state.get("sampler_seed")
        if seed is not None and type(seed) is not int:
            raise ValueError(f"the sampler's seed in this state is broken: {seed!r}")
        self._begun = self._after = None
        self._supposed = {}
        self._resumed = None if seed is None else (epoch, seed)


def _default() -> Any:
    torch: Any = sys.modules["torch"]
    return torch.default_generator
