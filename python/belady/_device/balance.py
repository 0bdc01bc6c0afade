"""Shares the images of a batch between processor and GPU.

The GPU idles if the training loop starts its work late. That happens when decoding threads take the
core from that loop, or from a thread that holds CUDA's lock while the loop waits for it. So
decoding threads run at idle priority: docs/performance.md, "On a GPU", has figures."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: The part of the time between batches that the processor may use, so that it is not the
#: bottleneck.
_BUSY = 0.9
#: The weight of one batch in the moving averages.
_WEIGHT = 0.2
#: An interval so many times as long as usual is a pause.
_PAUSE = 2.0
#: The first batches run at normal priority; later ones are measured against them.
_USUAL_BATCHES = 4
#: Below this part of the usual rate, other threads leave too little of the processor.
_STARVED = 0.3


class Balance:
    """Decides how many images of a batch the processor decodes."""

    def __init__(self) -> None:
        self._rate = 0.0  # images a second of the processor
        self._interval = 0.0  # seconds from batch to batch
        self._last: float | None = None

    def begin(self, images: int) -> int:
        """Starts a batch; returns how many of its images the processor decodes."""
        now = time.monotonic()
        if self._last is not None:
            self._interval = _average(self._interval, self._likely(now - self._last))
        self._last = now
        if self._rate == 0.0 or self._interval == 0.0:
            return max(1, images // 2)
        # Rounded down: a share that is too large would otherwise never shrink.
        return max(1, min(images, int(_BUSY * self._rate * self._interval)))

    def _likely(self, interval: float) -> float:
        """Limits an interval after a pause of training or a first read of files.

        The next batch is due as soon as before, so the processor must not take all images.
        """
        return interval if self._interval == 0.0 else min(interval, _PAUSE * self._interval)

    def took(self, images: int, seconds: float) -> None:
        """Records that the processor made so many images in so many seconds."""
        if images and seconds > 0:
            self._rate = _average(self._rate, images / seconds)


class IdlePriority:
    """Decides whether the processor's part of a batch runs at idle priority."""

    def __init__(self, possible: bool) -> None:
        self._possible = possible
        self._usual = 0.0
        self._batches = 0
        self._rate = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the next batch runs at idle priority."""
        return self._possible and self._batches >= _USUAL_BATCHES

    def took(self, images: int, seconds: float) -> None:
        """Records that so many images were made in so many seconds."""
        if not images or seconds <= 0:
            return
        rate = images / seconds
        if self._batches < _USUAL_BATCHES:
            self._usual = _average(self._usual, rate)
            self._rate = self._usual
        else:
            self._rate = _average(self._rate, rate)
        self._batches += 1
        if self._rate < _STARVED * self._usual:
            # Other threads use all of the processor: at normal priority every thread gets its part.
            self._possible = False


class Processor:
    """Runs the processor's part of batches, one after the other."""

    def __init__(self) -> None:
        self._priority = IdlePriority(hasattr(os, "SCHED_IDLE"))
        self._usual = ThreadPoolExecutor(1, "belady-share")
        # Threads that this one starts, which do the work, inherit its priority.
        self._idle = ThreadPoolExecutor(1, "belady-share-idle", initializer=_set_idle_priority)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Starts the work when earlier work is done."""
        pool = self._idle if self._priority.is_on else self._usual
        return pool.submit(work, *arguments)

    def took(self, images: int, seconds: float) -> None:
        """Records that the submitted work made so many images in so many seconds."""
        self._priority.took(images, seconds)

    def close(self) -> None:
        """Waits for the submitted work."""
        self._usual.shutdown(wait=True)
        self._idle.shutdown(wait=True)


def _set_idle_priority() -> None:
    # A sandbox may forbid it; batches are made all the same.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _average(average: float, value: float) -> float:
    return value if average == 0.0 else average + _WEIGHT * (value - average)
