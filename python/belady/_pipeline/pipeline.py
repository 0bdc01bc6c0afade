"""A running job of the engine, its feed, and its position in the run.

A pipeline lives across epochs: it reads the next epoch ahead while this one ends. It is replaced
only when the program does what could not be foreseen: leaves an epoch early, jumps to another one,
loads a checkpoint. (A program that left two epochs after the same number of batches is expected to
do so again: programs count "steps per epoch".)"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Any

from .. import _native
from .._configuration.loader_options import Options
from .._dataset.dataset import Dataset
from .._engine.engine import Engine
from .._orders.order import Order
from .decode import Work
from .feeds import DirectFeed, Feed, NativeFeed, ProbingFeed, Taken, ThreadFeed
from .fields import Applied, Transform
from .labels import Labels
from .position import Position
from .transform_seed import TransformSeed
from .workers import ProcessFeed, context_of

log = logging.getLogger("belady")


class Pipeline:
    """Gives the batches of an order from a position on."""

    def __init__(
        self,
        engine: Engine,
        data: Dataset,
        order: Order,
        options: Options,
        start: Position,
        cut: int | None,
        seed: TransformSeed,
        labels: Labels | None = None,
        *,
        shown: Any = None,
        peers: bool = False,
    ) -> None:
        left = None if options.epochs is None else options.epochs - start.epoch
        native = engine.start(
            data,
            order.start(start.epoch, start.batch, cut, len(data)),
            # A program may read more epochs than it announced.
            epochs=None if left is None or left <= 0 else left,
            staging=options.staging,
            staging_grows=options.staging_grows,
            next_epoch=options.staged_ahead(data),
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
        #: Also if a native transformer has taken over its batches.
        self._native = native
        #: Batches after which it continues with the next epoch; None for all.
        self.cut = cut
        self._last = options.epochs if left is not None and left > 0 else None
        self._pid = os.getpid()
        try:
            self.work = Work(
                options.decode,
                options.collate_fn,
                options.on_error,
                applied=_applied(options.transform, seed),
                labels=labels,
            )
            self._feed = _placed_feed(native, shown, self.work, options, seed)
        except BaseException:
            native.close()
            raise
        _LIVE.add(self)

    def reaches(self, position: Position) -> bool:
        """Whether the next batch is the one at this position."""
        beyond = self._last is not None and position.epoch >= self._last
        return self.at == position and not beyond

    def begin(self, epoch: int) -> None:
        """The user begins this epoch."""
        self._native.begin_epoch(max(0, epoch - self._started_at))

    def wait(self, timeout: float, stall_after: float) -> Taken | None:
        """Returns the next batch. Raises TimeoutError after `timeout` seconds, unless it is 0."""
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
        """Returns the engine's figures."""
        return self._feed.stats()

    def passed(self) -> None:
        """The user got a batch, or an error in its place."""
        self.at = Position(self.at.epoch, self.at.batch + 1)

    def epoch_over(self) -> None:
        """The user has finished the epoch; the first batch of the next one comes next."""
        self.at = Position(self.at.epoch + 1, 0)
        self._native.end_epoch()

    def close(self) -> None:
        """Ends it, in any state.

        A forked child has none of its threads, so nothing happens there.
        """
        _LIVE.discard(self)
        if os.getpid() == self._pid:
            self._feed.close()


def _applied(transform: Transform | None, seed: TransformSeed) -> Applied | None:
    """Returns a transform that needs Python, with its seed."""
    if transform is None or transform.native:
        return None
    return Applied(transform, seed)


def _placed_feed(
    native: _native.Loader, shown: Any, work: Work, options: Options, seed: TransformSeed
) -> Feed:
    placement = options.placement
    if placement is None:
        return _feed(native, shown, work, options, seed)
    if placement.gpu_decode is not None:
        inner: Feed = DirectFeed(native, Work(None, None, options.on_error))
    else:
        inner = _feed(native, shown, work, options, seed)
    try:
        return placement.feed(inner, work, options.threads, seed)
    except BaseException:
        inner.close()
        raise


def _feed(
    native: _native.Loader, shown: Any, work: Work, options: Options, seed: TransformSeed
) -> Feed:
    if options.transform is not None and options.transform.native:
        transformer = native.transformed(
            options.transform.native_fields(),
            seed=seed.seed,
            threads=options.threads,
            depth=options.prefetch,
            on_error=options.on_error,
            on_block=None if options.placement is None else options.placement.on_block(),
            first=seed.first,
            repeats=seed.repeats,
        )
        return NativeFeed(transformer, options.transform, work)
    if options.processes:
        processes = ProcessFeed(
            native,
            work,
            workers=options.workers,
            depth=options.workers * options.prefetch,
            staging=options.staging,
            context=options.context or context_of(None),
            init=options.worker_init_fn,
            seed=seed.seed_of_workers(),
            dataset=shown,
        )
        processes.start()
        return processes
    if options.decode is not None or work.applied is not None:
        waits = options.placement is None
        return ProbingFeed(native, work, lambda: _threads(native, work, options), waits=waits)
    return DirectFeed(native, work)


def _threads(native: _native.Loader, work: Work, options: Options) -> ThreadFeed:
    threads = ThreadFeed(
        native, work, threads=options.threads, depth=options.prefetch, staging=options.staging
    )
    threads.start()
    return threads


#: Closed at exit: no thread of ours may run while the interpreter ends.
_LIVE: weakref.WeakSet[Pipeline] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pipeline in list(_LIVE):
        pipeline.close()
