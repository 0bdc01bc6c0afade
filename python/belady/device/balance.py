"""How a batch is shared between the processor and the GPU, and how the processor's part gives way.

The GPU waits if the training loop is late with starting its work, and that happens when decoding threads
take the core from that loop, or from a thread that holds CUDA's lock while the loop waits for it. So
decoding threads run only where nothing else wants to: docs/performance.md, "On a GPU", has figures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: How much of the time between batches the processor may use up, so that it is not what is waited for.
_BUSY = 0.9
#: How much a single batch changes what is believed of rates.
_NEWS = 0.2
#: What takes so many times as long as usual is a pause.
_PAUSE = 2.0
#: So many batches are made as any thread would make them; later ones are measured against these.
_USUAL_BATCHES = 4
#: With less than this of the usual rate, others leave too little of the processor to give way to them.
_STARVED = 0.3


class Balance:
    """How many images of a batch the processor takes."""

    def __init__(self) -> None:
        self._rate = 0.0  # images a second, of the processor
        self._interval = 0.0  # seconds from batch to batch
        self._last: float | None = None

    def begin(self, images: int) -> int:
        """A batch begins; how many of its images the processor takes."""
        now = time.monotonic()
        if self._last is not None:
            self._interval = _blend(self._interval, self._likely(now - self._last))
        self._last = now
        if self._rate == 0.0 or self._interval == 0.0:
            return max(1, images // 2)
        # Rounded down: a share that is too large would otherwise stay.
        return max(1, min(images, int(_BUSY * self._rate * self._interval)))

    def _likely(self, interval: float) -> float:
        """After a pause of training, or while files are first read, batches are as soon wanted as before:
        the processor must not take all of them for that."""
        return interval if self._interval == 0.0 else min(interval, _PAUSE * self._interval)

    def took(self, images: int, seconds: float) -> None:
        """The processor has made so many images in so many seconds."""
        if images and seconds > 0:
            self._rate = _blend(self._rate, images / seconds)


class Manners:
    """Whether the processor's part of a batch gives way to all else that runs."""

    def __init__(self, possible: bool) -> None:
        self._possible = possible
        self._usual = 0.0
        self._batches = 0
        self._rate = 0.0

    @property
    def gives_way(self) -> bool:
        """Whether the next batch does."""
        return self._possible and self._batches >= _USUAL_BATCHES

    def took(self, images: int, seconds: float) -> None:
        """So many images were made in so many seconds."""
        if not images or seconds <= 0:
            return
        rate = images / seconds
        if self._batches < _USUAL_BATCHES:
            self._usual = _blend(self._usual, rate)
            self._rate = self._usual
        else:
            self._rate = _blend(self._rate, rate)
        self._batches += 1
        if self._rate < _STARVED * self._usual:
            # Others want all of the processor, and would get it. Then every thread gets its part.
            self._possible = False


class Processor:
    """Makes the processor's part of batches, one after the other."""

    def __init__(self) -> None:
        self._manners = Manners(hasattr(os, "SCHED_IDLE"))
        self._usual = ThreadPoolExecutor(1, "belady-share")
        # Threads that this one starts, which do the work, inherit its ways.
        self._giving_way = ThreadPoolExecutor(1, "belady-share-idle", initializer=_give_way)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begins with it as soon as what was submitted before is done."""
        pool = self._giving_way if self._manners.gives_way else self._usual
        return pool.submit(work, *arguments)

    def took(self, images: int, seconds: float) -> None:
        """What was submitted made so many images in so many seconds."""
        self._manners.took(images, seconds)

    def close(self) -> None:
        """Ends what was submitted."""
        self._usual.shutdown(wait=True)
        self._giving_way.shutdown(wait=True)


def _give_way() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        pass  # a sandbox that forbids it; batches come all the same


def _blend(believed: float, seen: float) -> float:
    return seen if believed == 0.0 else believed + _NEWS * (seen - believed)
