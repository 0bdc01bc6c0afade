"""What a loader asks of an order, and orders that are computed from the epoch's number.

An `Order` belongs to one loader and one rank. The loader reports events to it (an epoch begins, a
batch was delivered, the epoch ended), and the order holds the native `Orders` that the engine reads
ahead. There are four kinds:

- `NumberedOrder`, here: an epoch is computed from its number (distributed, sequential, weighted, a
  mixture). No event changes it.
- `GeneratorOrder` (`torch_generator.py`): one generator draws epoch after epoch, as with torch's
  `DataLoader(shuffle=True, generator=g)`. An epoch depends on how the last one ended.
- `DefaultGeneratorOrder` (`torch_default.py`): the same with torch's default generator.
- `SamplerOrder` (`user_sampler.py`): runs a sampler that the user wrote.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from typing import Any

from .. import _native


class Order(ABC):
    """One rank's order, epoch after epoch."""

    #: The order that the engine reads.
    native: _native.Orders
    #: What a checkpoint compares: the kind, and what the order is computed from.
    identity: dict[str, Any]
    #: Whether an epoch can contain a sample more than once, apart from padding.
    repeats = False
    #: Whether the next epoch had begun when the loaded state was saved. Its numbers were drawn
    #: then, and the program may have restored its generator to a later state.
    resumes = False
    _base_seed: Callable[[], None]

    def start(self, epoch: int, batch: int, cut: int | None, samples: int) -> _native.Orders:
        """Returns what the engine reads from a position on.

        With `cut`, the program is expected to leave each epoch after so many batches.
        """
        if cut is None:
            return self.uncut(epoch, batch)

        def first_batches(later: int) -> tuple[array[int], array[int]] | None:
            drawn = self.expected(epoch + later)
            if drawn is None:
                return None
            ids, ends = drawn
            kept = ends[:cut]
            return array("q", ids[: kept[-1]] if kept else []), array("q", kept)

        return _native.Orders.python(first_batches, samples=samples).start_at(0, batch)

    def uncut(self, epoch: int, batch: int) -> _native.Orders:
        """Returns what the engine reads from a position on if epochs are read to their end."""
        return self.native.start_at(epoch, batch)

    def expected(self, epoch: int) -> tuple[list[int], list[int]] | None:
        """Returns a later epoch, if the ones before are left early. Runs on another thread."""
        return self.drawn(epoch)

    def drawn(self, epoch: int) -> tuple[list[int], list[int]] | None:
        """Returns the ids of an epoch, and where its batches end."""
        return self.native.epoch(epoch)

    def upcoming(self, epoch: int) -> int:
        """Returns the epoch that is read next, where the loader has counted up to `epoch`."""
        return epoch

    def begin(self, epoch: int) -> bool:
        """An epoch begins. Returns True if `native` was replaced."""
        return False

    def follows_from_number(self, epoch: int) -> bool:
        """Whether another process that knows only the number would draw the same epoch."""
        return True

    def delivered(self, epoch: int, batches: int) -> None:
        """So many batches of the epoch were delivered."""

    def ended(self, epoch: int) -> None:
        """The iterator of the epoch raised StopIteration."""

    def jump(self, epoch: int) -> None:
        """The user asks for this epoch next, and another one would have followed."""

    def _draw_base_seed(self) -> None:
        """Draws as torch's loader does when an epoch begins."""
        if not self.resumes:
            self._base_seed()
        self.resumes = False

    @abstractmethod
    def batches(self, epoch: int) -> int | None:
        """Returns the number of batches of an epoch, if it is known."""

    def state(self, epoch: int) -> dict[str, Any]:
        """Returns what a checkpoint needs besides the position, safe for JSON."""
        return {}

    def restore(self, state: dict[str, Any], epoch: int) -> None:
        """Continues from what `state` returned."""


class NumberedOrder(Order):
    """An order whose epochs are computed from their numbers."""

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
    """A `torch.utils.data.DistributedSampler` of the user, computed natively.

    Its `epoch` attribute decides, as with torch: without `set_epoch` every epoch has the same
    order."""

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
