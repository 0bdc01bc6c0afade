"""Moves batches to a device while the one before is being computed on."""

from __future__ import annotations

from typing import Any, Protocol

from ..decode import Outcome, Source
from ..feed import Ahead, Feed, Pending, Taken


class Mover(Protocol):
    """How a library moves a batch."""

    def begin(self, taken: Taken) -> Any:
        """Begins to move a batch, in a thread of its own; returns what `arrived` needs."""

    def arrived(self, moving: Any, timeout: float | None) -> Outcome:
        """The batch on the device, to be used by the thread that calls. Raises TimeoutError."""

    def close(self) -> None:
        """Waits for what is on its way."""


class OnDevice(Ahead):
    """Gives out what another feed does, on a device, a few batches ahead."""

    def __init__(self, feed: Feed, mover: Mover, depth: int) -> None:
        super().__init__(feed, depth, staging=0)
        self._mover = mover

    def submit(self, batch: Taken) -> Pending:
        return _Moving(batch[0], self._mover, self._mover.begin(batch))

    def close(self) -> None:
        super().close()
        self._mover.close()


class _Moving(Pending):
    """A batch on its way."""

    def __init__(self, batch: Source, mover: Mover, moving: Any) -> None:
        self._batch = batch
        self._mover = mover
        self._moving = moving

    def result(self, timeout: float | None) -> Taken | None:
        return self._batch, self._mover.arrived(self._moving, timeout)

    def waiting_for(self) -> str:
        return "the device, to which a batch is being moved"
