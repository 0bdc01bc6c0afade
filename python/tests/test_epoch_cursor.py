"""The epoch state machine, with an order and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from belady import _native
from belady._loader.epoch_cursor import EpochCursor
from belady._orders.order import Order
from belady._pipeline.position import Position


class Recorded(Order):
    """Epochs of four batches; records what the cursor reports."""

    def __init__(self, length: int | None = 4) -> None:
        self.native = _native.Orders.distributed(samples=4, batch=1, order="sequential")
        self.identity = {"kind": "recorded"}
        self.length = length
        self.events: list[tuple[str, int]] = []
        #: The epoch that the order names instead of the one that was counted.
        self.named: int | None = None

    def upcoming(self, epoch: int) -> int:
        return epoch if self.named is None else self.named

    def begin(self, epoch: int) -> bool:
        self.events.append(("begin", epoch))
        return False

    def delivered(self, epoch: int, batches: int) -> None:
        self.events.append(("delivered", batches))

    def jump(self, epoch: int) -> None:
        self.events.append(("jump", epoch))

    def batches(self, epoch: int) -> int | None:
        return self.length


@pytest.fixture
def order() -> Recorded:
    return Recorded()


@pytest.fixture
def cursor(order: Recorded) -> EpochCursor:
    return EpochCursor(order)


def read(cursor: EpochCursor, batches: int) -> None:
    """Reads the beginning of the next epoch, and leaves it."""
    cursor.begin()
    for _ in range(batches):
        cursor.advance()
    cursor.finish(cursor.epoch + 1)


def test_epochs_follow_one_another(cursor: EpochCursor, order: Recorded) -> None:
    read(cursor, 4)
    read(cursor, 4)
    assert [event for event in order.events if event[0] == "begin"] == [("begin", 0), ("begin", 1)]
    assert cursor.epoch == 2
    assert cursor.position == Position(2, 0)


def test_an_epoch_is_complete_after_its_last_batch(cursor: EpochCursor) -> None:
    cursor.begin()
    left: list[Any] = []
    for _ in range(4):
        left.append(cursor.remaining())
        assert not cursor.is_complete
        cursor.advance()
    assert left == [4, 3, 2, 1]
    assert cursor.is_complete
    assert cursor.position == Position(0, 4)


def test_the_order_hears_of_every_batch(cursor: EpochCursor, order: Recorded) -> None:
    read(cursor, 3)
    assert order.events == [("begin", 0), ("delivered", 1), ("delivered", 2), ("delivered", 3)]


def test_an_order_without_a_length_is_never_complete() -> None:
    cursor = EpochCursor(Recorded(length=None))
    cursor.begin()
    cursor.advance()
    assert cursor.remaining() is None
    assert not cursor.is_complete
    with pytest.raises(TypeError, match="the sampler has no length"):
        cursor.length()


def test_an_epoch_has_to_be_finished_before_the_next_begins(cursor: EpochCursor) -> None:
    cursor.begin()
    with pytest.raises(AssertionError):
        cursor.begin()
    with pytest.raises(AssertionError):
        cursor.skip_to(1)


def test_set_next_jumps_only_to_an_epoch_that_would_not_follow(
    cursor: EpochCursor, order: Recorded
) -> None:
    cursor.set_next(0)
    cursor.begin()
    cursor.set_next(1)
    assert ("jump", 1) not in order.events
    assert (cursor.epoch, cursor.is_open) == (1, False)
    cursor.set_next(7)
    assert order.events[-1] == ("jump", 7)
    assert cursor.position == Position(7, 0)


def test_the_epoch_that_the_order_names_comes_next(cursor: EpochCursor, order: Recorded) -> None:
    read(cursor, 4)
    order.named = 5
    assert cursor.epoch == 5
    cursor.begin()
    assert order.events[-1] == ("begin", 5)


def test_the_user_s_epoch_comes_before_the_order_s(cursor: EpochCursor, order: Recorded) -> None:
    order.named = 5
    cursor.set_next(9)
    cursor.begin()
    assert order.events[-1] == ("begin", 9)


def test_an_order_that_repeats_an_epoch_is_counted(cursor: EpochCursor, order: Recorded) -> None:
    order.named = 0
    counted = []
    for _ in range(3):
        read(cursor, 4)
        counted.append(cursor.repetition)
    order.named = 1
    read(cursor, 4)
    assert [*counted, cursor.repetition] == [0, 1, 2, 0]


def test_an_epoch_that_the_user_sets_again_is_no_repetition(cursor: EpochCursor) -> None:
    read(cursor, 4)
    cursor.set_next(0)
    cursor.begin()
    assert cursor.repetition == 0


def test_two_epochs_left_after_as_many_batches_are_a_habit(cursor: EpochCursor) -> None:
    read(cursor, 3)
    assert cursor.usual_cut() is None
    read(cursor, 3)
    assert cursor.usual_cut() == 3
    read(cursor, 2)
    assert cursor.usual_cut() is None


def test_a_complete_epoch_is_no_habit(cursor: EpochCursor) -> None:
    read(cursor, 4)
    read(cursor, 4)
    assert cursor.usual_cut() is None


def test_a_program_that_reads_beyond_its_cut_has_no_habit(cursor: EpochCursor) -> None:
    read(cursor, 2)
    read(cursor, 2)
    cursor.begin()
    cursor.advance()
    assert cursor.usual_cut() == 2
    cursor.advance()
    assert cursor.usual_cut() is None, "the cut is not ahead"
    cursor.forget_cuts()
    cursor.finish(3)
    cursor.begin()
    assert cursor.usual_cut() is None


def test_skipped_batches_count_as_delivered(cursor: EpochCursor) -> None:
    cursor.skip_to(3)
    cursor.begin()
    assert cursor.position == Position(0, 3)
    assert cursor.remaining() == 1


def test_more_batches_than_an_epoch_has_leave_none(cursor: EpochCursor) -> None:
    cursor.skip_to(9)
    assert cursor.remaining() == 0


def test_a_restored_cursor_continues_within_the_epoch(cursor: EpochCursor) -> None:
    read(cursor, 2)
    read(cursor, 2)
    other = Recorded()
    cursor.restore(other, Position(6, 1), repetition=2)
    assert cursor.usual_cut() is None, "habits of the run before do not count"
    cursor.begin()
    assert other.events == [("begin", 6)]
    assert cursor.remaining() == 3
    assert cursor.repetition == 2


def test_a_restored_cursor_between_epochs_repeats_nothing(cursor: EpochCursor) -> None:
    cursor.restore(Recorded(), Position(6, 0), repetition=2)
    assert cursor.repetition == 0


def test_a_checkpoint_knows_an_epoch_that_the_order_names(
    cursor: EpochCursor, order: Recorded
) -> None:
    read(cursor, 4)
    order.named = 3
    assert cursor.saved_position == Position(3, 0)
