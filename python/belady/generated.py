"""Orders that one generator draws, as torch's `RandomSampler` does.

In torch an epoch draws in three steps: a base seed when the `DataLoader` is iterated, a
permutation when the first sample is asked for, and a second permutation, thrown away, when the
sampler runs out. A loop that is left early skips the third. So the next epoch depends on how
this one ended, and on everybody else who draws from the same generator.

The engine draws ahead on a copy, as if every epoch went to its end. Beside that, `GeneratorOrder`
moves the real generator (the user's, or one of its own) in the same steps as torch does. When an
epoch begins and the real generator is not where the copy supposed, the copy is made anew from
there. So the order is torch's in all cases; only reading ahead is in vain after an early end.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any

from . import _native
from . import generator as twister
from .generator import State
from .orders import Order


class GeneratorOrder(Order):
    """`RandomSampler(data, generator=g)`, by itself or within a `DataLoader`."""

    def __init__(
        self,
        *,
        samples: int,
        batch: int,
        drop_last: bool,
        seed: int = 0,
        generator: Any = None,
        draws: str = "loader",
        asked_ahead: int = 0,
        base_seed: Callable[[], None] = lambda: None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.identity = {"kind": "generator"} | ({"seed": seed} if generator is None else {})
        self._samples = samples
        self._batch = batch
        self._drop_last = drop_last
        self._draws = draws
        #: Batches that torch's worker processes would ask for ahead of delivery.
        self._asked_ahead = asked_ahead
        #: Draws the loader's base seed where that comes from another generator.
        self._base_seed = base_seed
        self._rank = rank
        self._ranks = ranks
        self._generator = generator
        first = self._orders(seed=seed) if generator is None else None
        self._own = State.parse(_blob(first, 0)) if first is not None else None
        #: Epoch 0 as everybody supposes it, for jumps.
        self._origin = (0, self._present())
        self._begun: tuple[int, State] | None = None
        self._exhausted = True
        #: Batches after which epochs are supposed to be left.
        self._cut: int | None = None
        #: What the engine was told to read.
        self._read: _native.Orders | None = None
        self._based(self._present(), 0)

    def start(self, epoch: int, batch: int, cut: int | None, samples: int) -> _native.Orders:
        assert self._begun is not None and self._begun[0] == epoch
        self._cut = cut
        self._based(self._begun[1], epoch)
        self._read = self.native
        return super().start(epoch, batch, cut, samples)

    def uncut(self, epoch: int, batch: int) -> _native.Orders:
        return self.native.start_at(epoch - self._base, batch)

    def drawn(self, epoch: int) -> tuple[list[int], list[int]]:
        begun = self._begun is not None and self._begun[0] == epoch
        state = self._begun[1] if self._begun is not None and begun else self._upcoming()
        return self._drawn_from(state, epoch)

    def supposed(self, epoch: int) -> tuple[list[int], list[int]]:
        return self._drawn_from(self._expected(epoch), epoch)

    def _drawn_from(self, state: State, epoch: int) -> tuple[list[int], list[int]]:
        """The part of this rank of the epoch that begins at `state`."""
        whole = _native.Orders.loader(
            samples=self._samples,
            batch=self._samples,
            state=state.blob(),
            first_epoch=epoch,
            draws=self._draws,
        ).epoch(0)
        assert whole is not None
        ids = whole[0]
        missing = -len(ids) % self._ranks
        padded = ids + (ids * (missing // len(ids) + 1))[:missing]
        mine = padded[self._rank :: self._ranks]
        batches = self.batches(epoch)
        ends = [min(len(mine), (batch + 1) * self._batch) for batch in range(batches)]
        return mine, ends

    def _upcoming(self) -> State:
        """Where the generator is when the next epoch begins."""
        if self._generator is None and self._begun is not None and not self._exhausted:
            return self._left_early(*self._begun)
        return self._present()

    def _based(self, state: State, epoch: int) -> None:
        """Draws from this state on, which is where `epoch` begins; the engine counts from it."""
        self._base = epoch
        self._loader = self._orders(state=state.blob(), first_epoch=epoch)
        self._seen: dict[int, State] = {epoch: state}
        self.native = self._loader if self._ranks == 1 else self._dealt()

    def _orders(self, **start: Any) -> _native.Orders:
        return _native.Orders.loader(
            samples=self._samples,
            batch=self._batch,
            draws=self._draws,
            drop_last=self._drop_last,
            **start,
        )

    def _dealt(self) -> _native.Orders:
        """The same dealt out to ranks, when a run of one process goes on with several."""
        return _native.Orders.python(
            self._my_part,
            samples=self._samples,
            batch=self._batch,
            drop_last=self._drop_last,
            largest_batch=self._batch,
        )

    def _my_part(self, later: int) -> tuple[Any, None]:
        return array("q", self.supposed(self._base + later)[0]), None

    def _expected(self, epoch: int) -> State:
        """Where the generator is when an epoch begins, if those before end as supposed."""
        if epoch not in self._seen:
            if self._cut is not None and not self._uses_up(self._cut):
                self._seen[epoch] = self._left_early(epoch - 1, self._expected(epoch - 1))
            else:
                self._seen[epoch] = State.parse(_blob(self._loader, epoch - self._base))
        return self._seen[epoch]

    def _present(self) -> State:
        if self._generator is None:
            assert self._own is not None
            return self._own
        return twister.read(self._generator)

    def _move(self, state: State) -> None:
        if self._generator is None:
            self._own = state
        else:
            twister.write(self._generator, state)

    def begin(self, epoch: int) -> bool:
        self._draw_base_seed()
        present = self._upcoming()
        if epoch < self._base or self._expected(epoch) != present:
            self._based(present, epoch)
        fresh, self._read = self._read is not self.native, self.native
        self._begun = (epoch, present)
        self._exhausted = False
        if self._generator is not None:
            self._move(self._left_early(epoch, present))
        self._seen = {e: s for e, s in list(self._seen.items()) if e >= epoch}
        return fresh

    def _left_early(self, epoch: int, state: State) -> State:
        """After the base seed and the first permutation of an epoch that begins at `state`."""
        through_loader = self._draws == "loader" or (
            self._draws == "persistent-loader" and epoch == 0
        )
        base = twister.BASE_SEED_WORDS if through_loader else 0
        return state.skip(base + twister.randperm_words(self._samples))

    def _used_up(self, epoch: int, state: State) -> State:
        """After all that an epoch draws that begins at `state` and goes to its end."""
        early = self._left_early(epoch, state)
        return early.skip(twister.randperm_words(self._samples))

    def delivered(self, epoch: int, batches: int) -> None:
        if self._uses_up(batches):
            self._run_out(epoch)

    def _uses_up(self, delivered: int) -> bool:
        """Whether torch has asked its sampler for more than there is by then."""
        asked, total = delivered + self._asked_ahead, self.batches(0)
        # To make an incomplete batch, torch asks for one sample too many, and runs out.
        short = not self._drop_last and self._samples % (self._batch * self._ranks) != 0
        return asked > total or (asked == total and short)

    def ended(self, epoch: int) -> None:
        self._run_out(epoch)

    def _run_out(self, epoch: int) -> None:
        if self._exhausted or self._begun is None:
            return
        self._exhausted = True
        self._move(self._used_up(*self._begun))

    def jump(self, epoch: int) -> None:
        first, state = self._origin
        if epoch < first:
            raise ValueError(
                f"epoch {epoch} cannot be drawn: this loader goes on from epoch {first}, and what "
                "its generator drew before is not known; make the loader anew from its seed"
            )
        orders = self._orders(state=state.blob(), first_epoch=first)
        self._move(state if epoch == first else State.parse(_blob(orders, epoch - first)))
        self._exhausted = True

    def batches(self, epoch: int) -> int:
        mine = -(-self._samples // self._ranks)
        return mine // self._batch if self._drop_last else -(-mine // self._batch)

    def state(self, epoch: int) -> dict[str, Any]:
        if self._begun is not None and self._begun[0] == epoch:
            return {"generator": self._begun[1].text(), "draws": self._draws}
        return {"generator": self._upcoming().text(), "draws": self._draws}

    def restore(self, state: dict[str, Any], epoch: int) -> None:
        try:
            drawn, draws = State.from_text(state["generator"]), state["draws"]
        except (KeyError, TypeError, ValueError, struct.error) as error:
            raise ValueError(f"the state of the generator in this state is broken: {error}") from error
        self._draws = draws
        self._begun = None
        self._cut = None
        self._exhausted = True
        self._origin = (epoch, drawn)
        self._move(drawn)
        self._based(drawn, epoch)


def _blob(orders: _native.Orders, epoch: int) -> bytes:
    blob = orders.state(epoch)
    assert blob is not None, "an order of one generator has a state"
    return blob
