"""Orders that one generator draws, as torch's `RandomSampler` does.

In torch an epoch draws in three steps: a base seed when the `DataLoader` is iterated, a permutation
for the first sample, and a second permutation, which is discarded, when the sampler is exhausted. A
loop that ends early skips the third step. So the next epoch depends on how this one ended, and on
all other code that draws from the same generator.

The engine draws ahead on a copy, as if every epoch were read to its end. `GeneratorOrder` moves the
real generator (the user's, or its own) in torch's steps. If the real generator is elsewhere than
the copy when an epoch begins, a new copy is made. The order is torch's in all cases; an early end
only wastes what was read ahead."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from .. import _native
from .._native import GeneratorState, randperm_words
from . import generator_state
from .order import Order


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
        #: Batches that torch's worker processes would request ahead of delivery.
        self._asked_ahead = asked_ahead
        #: Draws the loader's base seed if that comes from another generator.
        self._base_seed = base_seed
        self._rank = rank
        self._ranks = ranks
        self._generator = generator
        first = self._orders(seed=seed) if generator is None else None
        self._own = _state_of(first, 0) if first is not None else None
        #: The first known epoch and its state, for jumps.
        self._origin = (0, self._present())
        self._begun: tuple[int, GeneratorState] | None = None
        self._exhausted = True
        #: Batches after which the program is expected to leave its epochs.
        self._cut: int | None = None
        #: The order that the engine reads.
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

    def expected(self, epoch: int) -> tuple[list[int], list[int]]:
        return self._drawn_from(self._guess(epoch), epoch)

    def _drawn_from(self, state: GeneratorState, epoch: int) -> tuple[list[int], list[int]]:
        """Returns this rank's part of the epoch that begins at `state`."""
        whole = _native.Orders.loader(
            samples=self._samples,
            batch=self._samples,
            state=state.to_torch(),
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

    def _upcoming(self) -> GeneratorState:
        """Returns the generator's state when the next epoch begins."""
        if self._generator is None and self._begun is not None and not self._exhausted:
            return self._left_early(*self._begun)
        return self._present()

    def _based(self, state: GeneratorState, epoch: int) -> None:
        """Makes `state` the beginning of `epoch`, from which the engine counts."""
        self._base = epoch
        self._loader = self._orders(state=state.to_torch(), first_epoch=epoch)
        self._seen: dict[int, GeneratorState] = {epoch: state}
        self.native = self._loader if self._ranks == 1 else self._sharded()

    def _orders(self, **start: Any) -> _native.Orders:
        return _native.Orders.loader(
            samples=self._samples,
            batch=self._batch,
            draws=self._draws,
            drop_last=self._drop_last,
            **start,
        )

    def _sharded(self) -> _native.Orders:
        """Returns this rank's part, where a run of one process continues with several."""
        return _native.Orders.python(
            self._my_part,
            samples=self._samples,
            batch=self._batch,
            drop_last=self._drop_last,
            largest_batch=self._batch,
        )

    def _my_part(self, later: int) -> tuple[Any, None]:
        return array("q", self.expected(self._base + later)[0]), None

    def _guess(self, epoch: int) -> GeneratorState:
        """Returns the generator's state when an epoch begins, if earlier ones end as expected."""
        if epoch not in self._seen:
            if self._cut is not None and not self._uses_up(self._cut):
                self._seen[epoch] = self._left_early(epoch - 1, self._guess(epoch - 1))
            else:
                self._seen[epoch] = _state_of(self._loader, epoch - self._base)
        return self._seen[epoch]

    def _present(self) -> GeneratorState:
        if self._generator is None:
            assert self._own is not None
            return self._own
        return generator_state.read(self._generator)

    def _move(self, state: GeneratorState) -> None:
        if self._generator is None:
            self._own = state
        else:
            generator_state.write(self._generator, state)

    def begin(self, epoch: int) -> bool:
        self._draw_base_seed()
        present = self._upcoming()
        if epoch < self._base or self._guess(epoch) != present:
            self._based(present, epoch)
        fresh, self._read = self._read is not self.native, self.native
        self._begun = (epoch, present)
        self._exhausted = False
        if self._generator is not None:
            self._move(self._left_early(epoch, present))
        self._seen = {e: s for e, s in list(self._seen.items()) if e >= epoch}
        return fresh

    def _left_early(self, epoch: int, state: GeneratorState) -> GeneratorState:
        """Returns the state after an epoch that begins at `state` and ends early."""
        through_loader = self._draws == "loader" or (
            self._draws == "persistent-loader" and epoch == 0
        )
        base = generator_state.BASE_SEED_WORDS if through_loader else 0
        return state.skip(base + randperm_words(self._samples))

    def _used_up(self, epoch: int, state: GeneratorState) -> GeneratorState:
        """Returns the state after an epoch that begins at `state` and is read to its end."""
        early = self._left_early(epoch, state)
        return early.skip(randperm_words(self._samples))

    def delivered(self, epoch: int, batches: int) -> None:
        if self._uses_up(batches):
            self._exhaust(epoch)

    def _uses_up(self, delivered: int) -> bool:
        """Whether torch has exhausted its sampler by then."""
        asked, total = delivered + self._asked_ahead, self.batches(0)
        # For an incomplete batch torch requests one sample too many, which exhausts the sampler.
        short = not self._drop_last and self._samples % (self._batch * self._ranks) != 0
        return asked > total or (asked == total and short)

    def ended(self, epoch: int) -> None:
        self._exhaust(epoch)

    def _exhaust(self, epoch: int) -> None:
        if self._exhausted or self._begun is None:
            return
        self._exhausted = True
        self._move(self._used_up(*self._begun))

    def jump(self, epoch: int) -> None:
        first, state = self._origin
        if epoch < first:
            raise ValueError(
                f"epoch {epoch} cannot be drawn: this loader continues from epoch {first}, and its "
                "generator's earlier states are not known; make a new loader from the seed"
            )
        orders = self._orders(state=state.to_torch(), first_epoch=first)
        self._move(state if epoch == first else _state_of(orders, epoch - first))
        self._exhausted = True

    def batches(self, epoch: int) -> int:
        mine = -(-self._samples // self._ranks)
        return mine // self._batch if self._drop_last else -(-mine // self._batch)

    def state(self, epoch: int) -> dict[str, Any]:
        if self._begun is not None and self._begun[0] == epoch:
            return {"generator": generator_state.to_text(self._begun[1]), "draws": self._draws}
        return {"generator": generator_state.to_text(self._upcoming()), "draws": self._draws}

    def restore(self, state: dict[str, Any], epoch: int) -> None:
        if "generator" not in state or "draws" not in state:
            raise ValueError("the generator in this state is damaged: it is missing")
        drawn, draws = generator_state.from_text(state["generator"]), state["draws"]
        self._draws = draws
        self._begun = None
        self._cut = None
        self._exhausted = True
        self._origin = (epoch, drawn)
        self._move(drawn)
        self._based(drawn, epoch)


def _state_of(orders: _native.Orders, epoch: int) -> GeneratorState:
    state = orders.state(epoch)
    assert state is not None, "an order of one generator has a state"
    return GeneratorState.from_torch(state)
