"""Which samples come when: what a loader asks of an order, and orders that follow from a number.

An `Order` belongs to one loader and one rank. The loader tells it what happens (an epoch begins,
a batch was delivered, the epoch has ended), and the order keeps the native `Orders` that the
engine reads ahead. There are three kinds:

- `NumberedOrder`, here: an epoch follows from its number (distributed, sequential, weighted, a
  mixture). Nothing that happens changes it.
- `GeneratorOrder` (`generated.py`): one generator draws epoch after epoch, as with torch's
  `DataLoader(shuffle=True, generator=g)`. What is drawn depends on how the last epoch ended.
- `SampledOrder` (`sampled.py`): a sampler of the user's is run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from typing import Any

from . import _native


class Order(ABC):
    """One rank's order, epoch after epoch."""

    #: What the engine reads.
    native: _native.Orders
    #: What a checkpoint compares: the kind, and what the order follows from.
    identity: dict[str, Any]
    #: Whether an epoch can have a sample more than once, beside what makes ranks equal.
    repeats = False
    #: Whether the epoch that begins next had begun when a state was saved. What is drawn when it begins was
    #: drawn then, and the program may have restored its generator to what it was after that.
    goes_on = False
    _base_seed: Callable[[], None]

    def start(self, epoch: int, batch: int, cut: int | None, samples: int) -> _native.Orders:
        """What the engine reads from a position on.

        With `cut`, epochs are supposed to be left after so many batches.
        """
        if cut is None:
            return self.uncut(epoch, batch)

        def first_batches(later: int) -> tuple[array[int], array[int]] | None:
            drawn = self.supposed(epoch + later)
            if drawn is None:
                return None
            ids, ends = drawn
            kept = ends[:cut]
            return array("q", ids[: kept[-1]] if kept else []), array("q", kept)

        return _native.Orders.python(first_batches, samples=samples).start_at(0, batch)

    def uncut(self, epoch: int, batch: int) -> _native.Orders:
        """What the engine reads from a position on, if epochs go to their end."""
        return self.native.start_at(epoch, batch)

    def supposed(self, epoch: int) -> tuple[list[int], list[int]] | None:
        """An epoch to come, where those before are left early. Called on another thread."""
        return self.drawn(epoch)

    def drawn(self, epoch: int) -> tuple[list[int], list[int]] | None:
        """Ids of an epoch, and where its batches end."""
        return self.native.epoch(epoch)

    def upcoming(self, epoch: int) -> int:
        """The epoch that is read next, where the loader has counted up to `epoch`."""
        return epoch

    def begin(self, epoch: int) -> bool:
        """An epoch begins. True if `native` is another one than before."""
        return False

    def follows_from_number(self, epoch: int) -> bool:
        """Whether another process that knows only its number would draw this epoch alike."""
        return True

    def delivered(self, epoch: int, batches: int) -> None:
        """So many batches of the epoch are with the user."""

    def ended(self, epoch: int) -> None:
        """The user was told that the epoch is over."""

    def jump(self, epoch: int) -> None:
        """The user wants this epoch next, and it is not the one that would have come."""

    def _draw_base_seed(self) -> None:
        """As torch's loader does when an epoch begins."""
        if not self.goes_on:
            self._base_seed()
        self.goes_on = False

    @abstractmethod
    def batches(self, epoch: int) -> int | None:
        """Batches of an epoch, if that is known."""

    def state(self, epoch: int) -> dict[str, Any]:
        """What a checkpoint needs besides the position, safe for JSON."""
        return {}

    def restore(self, state: dict[str, Any], epoch: int) -> None:
        """Goes on from what `state` gave."""


class NumberedOrder(Order):
    """Every epoch follows from its number alone."""

    def __init__(
        self, native: _native.Orders, base_seed: Callable[[], None], **identity: Any
    ) -> None:
        self.identity = identity
        self.native = native
        self._base_seed = base_seed

    def start(self, epoch: int, batch: int, cut: int | None, samples: int) -> _native.Orders:
        native = self.native if cut is None else self.native.first_batches(cut)
        return native.start_at(epoch, batch)

    def begin(self, epoch: int) -> bool:
        self._draw_base_seed()
        return False

    def batches(self, epoch: int) -> int | None:
        return self.native.batches(epoch)


class TorchDistributedOrder(NumberedOrder):
    """A `torch.utils.data.DistributedSampler` of the user's, done natively.

    Its `epoch` decides, as with torch: without `set_epoch` every epoch has the same order.
    """

    def __init__(
        self,
        sampler: Any,
        native: _native.Orders,
        base_seed: Callable[[], None],
        **identity: Any,
    ) -> None:
        super().__init__(native, base_seed, **identity)
        self._sampler = sampler

    def upcoming(self, epoch: int) -> int:
        return int(self._sampler.epoch)

    def jump(self, epoch: int) -> None:
        self._sampler.set_epoch(epoch)

    def restore(self, state: dict[str, Any], epoch: int) -> None:
        self._sampler.set_epoch(epoch)
