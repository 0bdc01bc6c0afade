"""A running job of the engine, with whoever decodes, and where in the run it is.

A pipeline lives across epochs: it reads the next epoch ahead while this one ends. It is started
anew only when the user does what nobody could foresee: leaves an epoch early, jumps to another,
loads a checkpoint. (Who leaves twice after the same number of batches is supposed to go on
like that: programs count "steps per epoch".)
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Any

from . import _native
from .dataset import Dataset
from .decode import Work
from .draws import Draws
from .engine import Engine
from .feed import Direct, Feed, Taken, Threads, Transformed, Tried
from .fields import Applied, Transform
from .labels import Labels
from .options import Options, start_of_next
from .orders import Order
from .state import Position
from .workers import Processes, context_of

log = logging.getLogger("belady")


class Pipeline:
    """Batches from one position of an order on."""

    def __init__(
        self,
        engine: Engine,
        data: Dataset,
        order: Order,
        options: Options,
        start: Position,
        cut: int | None,
        draws: Draws,
        labels: Labels | None = None,
        *,
        shown: Any = None,
        peers: bool = False,
    ) -> None:
        left = None if options.epochs is None else options.epochs - start.epoch
        native = engine.native.start(
            data.native,
            order.start(start.epoch, start.batch, cut, len(data)),
            # Who goes on beyond the epochs that were named gets them all the same.
            epochs=None if left is None or left <= 0 else left,
            staging=options.staging,
            staging_grows=options.staging_grows,
            next_epoch=start_of_next(options, data),
            policy=options.policy,
            bad_samples=options.on_error,
            writable=options.writable,
            shared=options.processes,
            cache_share=options.cache_share,
            trace=options.trace,
            peers=peers,
        )
        self.at = start
        self._started_at = start.epoch
        #: Also where a stage that transforms has taken its batches over.
        self._native = native
        #: Batches after which it goes on with the next epoch; None if at the end.
        self.cut = cut
        self._last = options.epochs if left is not None and left > 0 else None
        self._pid = os.getpid()
        try:
            self.work = Work(
                options.decode,
                options.collate_fn,
                options.on_error,
                applied=_applied(options.transform, draws),
                labels=labels,
            )
            self._feed = _placed_feed(native, shown, self.work, options, draws)
        except BaseException:
            native.close()
            raise
        _LIVE.add(self)

    def reaches(self, position: Position) -> bool:
        """Whether the next batch is the one at this position."""
        beyond = self._last is not None and position.epoch >= self._last
        return self.at == position and not beyond

    def begin(self, epoch: int) -> None:
        """The user has begun this epoch."""
        self._native.begin_epoch(max(0, epoch - self._started_at))

    def wait(self, timeout: float, stall_after: float) -> Taken | None:
        """The next batch, however long it takes, or for `timeout` seconds if that is not 0."""
        waited = 0.0
        while True:
            step = min(stall_after, timeout - waited) if timeout else stall_after
            try:
                return self._feed.next(step)
            except TimeoutError:
                waited += step
            reason = self._feed.waiting_for()
            if timeout and waited >= timeout:
                raise TimeoutError(f"no batch came within {timeout:g} s; waiting for {reason}")
            log.warning("belady has been waiting for %.0f s, for %s", waited, reason)

    def stats(self) -> dict[str, Any]:
        """What the engine did."""
        return self._feed.stats()

    def passed(self) -> None:
        """A batch, or an error in its place, is with the user."""
        self.at = Position(self.at.epoch, self.at.batch + 1)

    def epoch_over(self) -> None:
        """What comes next is the first batch of the next epoch."""
        self.at = Position(self.at.epoch + 1, 0)
        self._native.rest()

    def close(self) -> None:
        """Ends it from any state; nothing in a forked child, where its threads are not."""
        _LIVE.discard(self)
        if os.getpid() == self._pid:
            self._feed.close()


def _applied(transform: Transform | None, draws: Draws) -> Applied | None:
    """A transform that needs Python, for whoever decodes."""
    if transform is None or transform.native:
        return None
    return Applied(transform, draws)


def _placed_feed(
    native: _native.Loader, shown: Any, work: Work, options: Options, draws: Draws
) -> Feed:
    placement = options.placement
    if placement is None:
        return _feed(native, shown, work, options, draws)
    if placement.gpu_decode is not None:
        inner: Feed = Direct(native, Work(None, None, options.on_error))
    else:
        inner = _feed(native, shown, work, options, draws)
    try:
        return placement.feed(inner, work, options.threads, draws)
    except BaseException:
        inner.close()
        raise


def _feed(
    native: _native.Loader, shown: Any, work: Work, options: Options, draws: Draws
) -> Feed:
    if options.transform is not None and options.transform.native:
        transformer = native.transformed(
            options.transform.native_fields(),
            seed=draws.seed,
            threads=options.threads,
            depth=options.prefetch,
            on_error=options.on_error,
            on_block=None if options.placement is None else options.placement.on_block(),
            first=draws.first,
            repeats=draws.repeats,
        )
        return Transformed(transformer, options.transform, work)
    if options.processes:
        processes = Processes(
            native,
            work,
            workers=options.workers,
            depth=options.workers * options.prefetch,
            staging=options.staging,
            context=options.context or context_of(None),
            init=options.worker_init_fn,
            seed=draws.seed_of_workers(),
            dataset=shown,
        )
        processes.start()
        return processes
    if options.decode is not None or work.applied is not None:
        waits = options.placement is None
        return Tried(native, work, lambda: _threads(native, work, options), waits=waits)
    return Direct(native, work)


def _threads(native: _native.Loader, work: Work, options: Options) -> Threads:
    threads = Threads(
        native, work, threads=options.threads, depth=options.prefetch, staging=options.staging
    )
    threads.start()
    return threads


#: Ended before the interpreter, whose end no thread of ours may meet.
_LIVE: weakref.WeakSet[Pipeline] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pipeline in list(_LIVE):
        pipeline.close()
