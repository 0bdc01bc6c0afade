"""The epoch state machine of a loader.

An `EpochCursor` knows which batch of which epoch comes next. An epoch is *open* from the request
for its first batch until its end, an early exit (`break`) or a jump:

    closed --begin()--> open --advance()*--> open --finish(following)--> closed

Between epochs the cursor follows the order, which may name another epoch than the next one (a
`DistributedSampler` whose `set_epoch` was called), unless the user called `loader.set_epoch`.

The cursor holds no threads and reads nothing, so its tests need an order alone.
"""

from __future__ import annotations

from .._orders.order import Order
from .._pipeline.position import Position


class EpochCursor:
    """Counts epochs and delivered batches, and tells the order about them."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._epoch = 0
        self.delivered = 0
        self.is_open = False
        #: How often in a row the order repeated this epoch. A `DistributedSampler` without
        #: `set_epoch` repeats one epoch for ever; transforms draw other numbers each time, as with
        #: torch.
        self.repetition = 0
        self._last_begun: int | None = None
        self._jumped = False
        #: After how many batches the last two epochs were left; None for a complete epoch.
        self._left_after: tuple[int | None, int | None] = (None, None)

    @property
    def epoch(self) -> int:
        """The open epoch, or the one that comes next."""
        return self._epoch if self.is_open else self.order.upcoming(self._epoch)

    @property
    def position(self) -> Position:
        """The batch that comes next in the open epoch."""
        return Position(self._epoch, self.delivered)

    @property
    def saved_position(self) -> Position:
        """The position for a checkpoint.

        A `DistributedSampler` may know of a later epoch before its loader does.
        """
        return Position(max(self._epoch, self.epoch), self.delivered)

    def begin(self) -> bool:
        """Opens the epoch; True if the engine has to read another order than it read ahead."""
        assert not self.is_open, "finish() closes the epoch before"
        upcoming = self.order.upcoming(self._epoch)
        if not self._jumped and upcoming != self._epoch:
            self._epoch, self.delivered = upcoming, 0
        if self.delivered == 0:
            repeated = self._last_begun == self._epoch and not self._jumped
            self.repetition = self.repetition + 1 if repeated else 0
        self._last_begun = self._epoch
        self._jumped = False
        self.is_open = True
        return self.order.begin(self._epoch)

    def advance(self) -> None:
        """Counts a batch as delivered."""
        self.delivered += 1
        self.order.delivered(self._epoch, self.delivered)

    def remaining(self) -> int | None:
        """Batches of the epoch that are still to be delivered; None if the order cannot tell."""
        batches = self.order.batches(self._epoch)
        return None if batches is None else max(0, batches - self.delivered)

    def length(self) -> int:
        """Returns the batches of the open epoch, or of the next one.

        Raises TypeError if the order cannot tell.
        """
        batches = self.order.batches(self.epoch)
        if batches is None:
            raise TypeError("the sampler has no length, so the number of batches is not known")
        return batches

    @property
    def is_complete(self) -> bool:
        """Whether all batches of the epoch were delivered."""
        return self.remaining() == 0

    def finish(self, following: int) -> None:
        """Closes the epoch, complete or not; `following` comes next."""
        if self.is_open:
            left_after = None if self.is_complete else self.delivered
            self._left_after = (left_after, self._left_after[0])
        self._epoch = following
        self.delivered = 0
        self.is_open = False

    def set_next(self, epoch: int) -> None:
        """Closes the epoch and makes `epoch` the next one."""
        following = self._epoch + 1 if self.is_open else self._epoch
        if epoch != following:
            self.finish(epoch)
            self.order.jump(epoch)
            self._jumped = True
        elif self.is_open:
            self.finish(epoch)

    def skip_to(self, batch: int) -> None:
        """Makes `batch` the first one of the next epoch."""
        assert not self.is_open, "finish() closes the epoch before"
        if not self._jumped:
            self._epoch = self.epoch
        self.delivered = batch

    def usual_cut(self) -> int | None:
        """Batches after which the program leaves its epochs, if it left the last two after as many.

        Programs that count "steps per epoch" do so. The engine then reads on with the next epoch.
        """
        last, before = self._left_after
        return last if last == before and (last or 0) > self.delivered else None

    def forget_cuts(self) -> None:
        """The program went on beyond the batch after which it had left its epochs."""
        self._left_after = (None, None)

    def restore(self, order: Order, position: Position, repetition: int) -> None:
        """Continues a run at the position of a checkpoint."""
        self.order = order
        self._epoch, self.delivered = position
        self.repetition = repetition if position.batch > 0 else 0
        self._last_begun = None
        self.is_open = self._jumped = False
        self.forget_cuts()
