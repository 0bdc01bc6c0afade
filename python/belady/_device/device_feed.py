"""Moves batches to a device while the program computes on the one before."""

from __future__ import annotations

from typing import Any, Protocol

from .._pipeline.decode import Outcome, Source
from .._pipeline.feeds import AheadFeed, Feed, Pending, Taken


class Mover(Protocol):
    """Moves batches with a library."""

    def begin(self, taken: Taken) -> Any:
        """Starts moving a batch, on the feed's thread; returns the argument of `arrived`."""

    def arrived(self, moving: Any, timeout: float | None) -> Outcome:
        """Returns the batch on the device, for the calling thread. Raises TimeoutError."""

    def close(self) -> None:
        """Waits for batches in flight, on the feed's thread."""


class DeviceFeed(AheadFeed):
    """Gives the batches of another feed on a device, a few batches ahead."""

    def __init__(self, feed: Feed, mover: Mover, depth: int) -> None:
        super().__init__(feed, depth, staging=0)
        self._mover = mover

    def submit(self, batch: Taken) -> Pending:
        return _Moving(batch[0], self._mover, self._mover.begin(batch))

    def _ended(self) -> None:
        # Here and not in `close`, as in `ThreadFeed`: the garbage collector may call that within
        # `begin`, on a thread that holds the locks of the mover's pools.
        self._mover.close()


class _Moving(Pending):
    """A batch in flight."""

    def __init__(self, batch: Source, mover: Mover, moving: Any) -> None:
        self._batch = batch
        self._mover = mover
        self._moving = moving

    def result(self, timeout: float | None) -> Taken | None:
        return self._batch, self._mover.arrived(self._moving, timeout)

    def waiting_for(self) -> str:
        return "a batch to be moved to the device"
