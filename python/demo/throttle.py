"""A slow link within a program, for machines on which no slow file system can be mounted.

All processes that share a `Link` share its speed, as worker processes of torch's DataLoader do.
"""

from __future__ import annotations

import multiprocessing
import time


class Link:
    """Carries bytes, one request after another, at a rate."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._lock = multiprocessing.Lock()
        self._free = multiprocessing.Value("d", 0.0, lock=False)
        self._carried = multiprocessing.Value("q", 0, lock=False)

    def carry(self, size: int) -> None:
        """Returns when so many bytes have passed."""
        with self._lock:
            # The clock is the same in all processes of a machine.
            until = max(time.monotonic(), self._free.value) + size / self.rate
            self._free.value = until
            self._carried.value += size
        time.sleep(max(0.0, until - time.monotonic()))

    @property
    def carried(self) -> int:
        """Bytes that have passed so far."""
        return int(self._carried.value)
