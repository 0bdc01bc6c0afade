"""Batches on their way to a device, with a mover that needs none."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from belady._device.device_feed import DeviceFeed
from belady._pipeline.decode import Outcome
from belady._pipeline.feeds import Feed, Taken

LIMIT = 60.0


class Numbers(Feed):
    """A feed that never ends."""

    def __init__(self) -> None:
        self.is_closed = False

    def next(self, timeout: float | None) -> Taken | None:
        return [], Outcome(1, [0], [])  # type: ignore[return-value]

    def waiting_for(self) -> str:
        return "nothing"

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.is_closed = True


class PoolMover:
    """Moves batches on the thread of a pool, as `GpuDecode` does."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.within_begin: Any = lambda: None
        self.is_closed = threading.Event()

    def begin(self, taken: Taken) -> Future[Outcome]:
        # What the garbage collector runs while the pool takes work.
        with self.pool._shutdown_lock:
            self.within_begin()
        return self.pool.submit(lambda: taken[1])

    def arrived(self, moving: Future[Outcome], timeout: float | None) -> Outcome:
        return moving.result(timeout)

    def close(self) -> None:
        self.pool.shutdown(wait=True)
        self.is_closed.set()


def test_a_loader_that_is_collected_while_its_pool_takes_work_closes() -> None:
    mover, numbers = PoolMover(), Numbers()
    feed = DeviceFeed(numbers, mover, depth=2)
    collected = threading.Event()

    def collect() -> None:
        feed.close()
        collected.set()

    feed.start()
    assert feed.next(LIMIT) is not None
    mover.within_begin = collect
    feed.next(LIMIT)  # makes room for another batch
    assert collected.wait(LIMIT), "close waits for a lock of the thread that calls it"
    assert mover.is_closed.wait(LIMIT) and numbers.is_closed


def test_closing_a_feed_closes_its_mover() -> None:
    mover = PoolMover()
    feed = DeviceFeed(Numbers(), mover, depth=2)
    feed.start()
    assert feed.next(LIMIT) is not None
    feed.close()
    assert mover.is_closed.wait(LIMIT)
