"""Feeds: batches on their way from the engine to the user.

What has to be done with the bytes decides which feed is used:

- `NativeFeed`: native transforms, in native threads, ahead of the user.
- `DirectFeed`: nothing, or only a `collate_fn`: on the user's thread.
- `ThreadFeed` (`num_workers=0`): `decode` in threads, ahead of the user. `ProbingFeed` finds out
  first whether `decode` draws random numbers: then it runs on the user's thread, as with torch.
- `ProcessFeed` (`workers.py`): `decode` and `collate_fn` in worker processes.

The last two also run Python functions within transforms. Each has a thread that takes batches from
the engine as long as there is space. Batches that the user has not got yet hold at most half of the
staging buffer; the engine fills the other half."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from .. import _native
from ..errors import SampleError
from .decode import Failure, Outcome, Source, Work
from .fields import Transform
from .position import SamplePlace

log = logging.getLogger("belady")

#: The interval at which a waiting thread checks whether the feed is closed.
_POLL_SECONDS = 0.1

Taken = tuple[Source, Outcome]


class Feed(ABC):
    """Gives batches in order, with the outcome of the work on them."""

    @abstractmethod
    def next(self, timeout: float | None) -> Taken | None:
        """Returns the next batch; None after the last. Raises TimeoutError."""

    @abstractmethod
    def waiting_for(self) -> str:
        """Returns what it waits for, in words."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Returns the engine's figures."""

    @abstractmethod
    def close(self) -> None:
        """Ends it, in any state."""


class NativeFeed(Feed):
    """Transforms in native threads; only `collate_fn` runs on the user's thread."""

    def __init__(self, native: _native.Transformer, transform: Transform, work: Work) -> None:
        self._native = native
        self._transform = transform
        self._work = work

    def next(self, timeout: float | None) -> Taken | None:
        batch = self._native.next(timeout)
        return None if batch is None else (batch, self._outcome(batch))

    def _outcome(self, batch: _native.OutputBatch) -> Outcome:
        failures = [Failure(position, None, "", what) for position, what in batch.failures]
        labels, kept = self._work.labels(batch), batch.kept
        if kept is not None:
            labels = [labels[position] for position in kept]
        if not labels:
            return Outcome(None, [], failures)
        if self._work.collate_fn is None:
            return Outcome(self._transform.batch(batch, labels), kept, failures)
        whole = self._work.collated(self._transform.samples(batch, labels))
        return Outcome(whole.value, kept, failures)

    def waiting_for(self) -> str:
        return self._native.waiting_for()

    def stats(self) -> dict[str, Any]:
        return self._native.stats()

    def close(self) -> None:
        self._native.close()


class DirectFeed(Feed):
    """Works on the user's thread."""

    def __init__(self, loader: _native.Loader, work: Work) -> None:
        self._loader = loader
        self._work = work

    def next(self, timeout: float | None) -> Taken | None:
        batch = self._loader.next(timeout)
        return None if batch is None else (batch, self._work.whole(batch))

    def waiting_for(self) -> str:
        return self._loader.waiting_for()

    def stats(self) -> dict[str, Any]:
        return self._loader.stats()

    def close(self) -> None:
        self._loader.close()


class Pending(ABC):
    """A batch that is worked on, or an error in its place."""

    size = 0

    @abstractmethod
    def result(self, timeout: float | None) -> Taken | None:
        """Returns the batch and its outcome. Raises TimeoutError."""

    @abstractmethod
    def waiting_for(self) -> str:
        """Returns what it waits for, in words."""


class Ended(Pending):
    """The end of the engine's batches, or the error that ended them."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def result(self, timeout: float | None) -> Taken | None:
        if self.error is not None:
            raise self.error
        return None

    def waiting_for(self) -> str:
        return "nothing"


class BatchSource(Protocol):
    """Gives batches: the engine, or another feed."""

    def next(self, timeout: float | None) -> Any: ...
    def waiting_for(self) -> str: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class AheadFeed(Feed):
    """Takes batches from the engine on a thread and starts the work on them ahead of the user."""

    def __init__(self, loader: BatchSource, depth: int, staging: int) -> None:
        self._loader = loader
        self._depth = depth
        self._space = staging // 2
        self._held = 0
        self._largest = 0
        self._queue: deque[Pending] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="belady-feed", daemon=True)

    @abstractmethod
    def submit(self, batch: Any) -> Pending:
        """Starts the work on a batch."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._take_batches()
        finally:
            self._ended()

    def _ended(self) -> None:
        """The thread takes no more batches."""

    def _take_batches(self) -> None:
        while self._wait_for_space():
            pending = self._take()
            if pending is None:
                continue
            with self._changed:
                self._queue.append(pending)
                self._held += pending.size
                self._largest = max(self._largest, pending.size)
                self._changed.notify_all()
            if isinstance(pending, Ended) and not isinstance(pending.error, SampleError):
                return

    def _wait_for_space(self) -> bool:
        """Waits until another batch fits; returns False when the feed is closed."""
        with self._changed:
            while not self._closing:
                fits = self._held == 0 or self._held + self._largest <= self._space
                if len(self._queue) < self._depth and fits:
                    return True
                self._changed.wait()
            return False

    def _take(self) -> Pending | None:
        try:
            batch = self._loader.next(_POLL_SECONDS)
            return Ended(None) if batch is None else self.submit(batch)
        except TimeoutError:
            return None
        except BaseException as error:  # raised to the user in its turn
            return Ended(error)

    def next(self, timeout: float | None) -> Taken | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._queue, timeout):
                raise TimeoutError
            pending = self._queue[0]
        try:
            taken = pending.result(timeout)
        except TimeoutError:
            raise
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                self._done(pending)
            raise
        self._done(pending)
        return taken

    def _done(self, pending: Pending) -> None:
        with self._changed:
            if isinstance(pending, Ended) and not isinstance(pending.error, SampleError):
                return  # it stays, so that the next call gets the same answer
            self._queue.popleft()
            self._held -= pending.size
            self._changed.notify_all()

    def waiting_for(self) -> str:
        with self._changed:
            if self._queue:
                return self._queue[0].waiting_for()
        return self._loader.waiting_for()

    def stats(self) -> dict[str, Any]:
        return self._loader.stats()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._queue.clear()
            self._changed.notify_all()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10 * _POLL_SECONDS)
        self._loader.close()


class ThreadFeed(AheadFeed):
    """Decodes in threads, which share the samples of a batch."""

    def __init__(
        self, loader: _native.Loader, work: Work, *, threads: int, depth: int, staging: int
    ) -> None:
        super().__init__(loader, depth, staging)
        self._work = work
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="belady-decode")

    def submit(self, batch: _native.Batch) -> Pending:
        shared = _SharedBatch(batch, self._work)
        share = -(-max(1, len(batch)) // self._threads)
        starts = range(0, max(1, len(batch)), share)
        shared.parts = len(starts)
        for start in starts:
            self._pool.submit(shared.run, start, min(start + share, len(batch)))
        return shared

    def _ended(self) -> None:
        # Here and not in `close`, which the garbage collector may call on a thread that holds the
        # pool's locks.
        self._pool.shutdown(wait=False, cancel_futures=self._closing)


class ProbingFeed(Feed):
    """Decodes the first batch on the user's thread to see whether `decode` draws random numbers.

    In threads, draws from a generator of the whole program would come in any order, between those
    of the program. Such a `decode` stays on the user's thread, where it draws as with torch's
    `num_workers=0`."""

    def __init__(
        self, loader: _native.Loader, work: Work, threads: Callable[[], ThreadFeed], *, waits: bool
    ) -> None:
        self._feed: Feed = DirectFeed(loader, work)
        self._threads = threads
        #: Whether the program waits for batches, so that it draws nothing meanwhile.
        self._waits = waits
        #: Whether it is known how `decode` draws.
        self._is_settled = False

    def next(self, timeout: float | None) -> Taken | None:
        if self._is_settled:
            return self._feed.next(timeout)
        before = shared_generators()
        taken = self._feed.next(timeout)
        if taken is None or len(taken[0]) == 0:
            return taken
        after = shared_generators()
        # A module that was imported meanwhile is not compared.
        draws = any(after[name] != state for name, state in before.items())
        if isinstance(self._feed, ThreadFeed):
            self._warn_of_late_draws(draws)
        elif draws:
            self._is_settled = True
            log.warning(_DRAWS if self._waits else _DRAWS_AHEAD)
        else:
            self._feed = self._threads()
            self._is_settled = not self._waits
        return taken

    def _warn_of_late_draws(self, draws: bool) -> None:
        """Warns if `decode` drew: the program did not, since it waited for the batch."""
        if draws:
            self._is_settled = True
            log.warning(
                "decode draws random numbers for some samples and runs in several threads, so its "
                "draws differ from run to run; num_workers=1 or more gives each worker a seed"
            )

    def waiting_for(self) -> str:
        return self._feed.waiting_for()

    def stats(self) -> dict[str, Any]:
        return self._feed.stats()

    def close(self) -> None:
        self._feed.close()


_DRAWS = (
    "decode or collate_fn draws from a generator of the whole program, so both run on the thread "
    "that takes batches, as with torch; with num_workers=1 or more they run beside it"
)
_DRAWS_AHEAD = (
    "decode or collate_fn draws from a generator of the whole program, and device= makes batches "
    "ahead of use, so the draws differ from run to run; num_workers=1 or more gives each worker a "
    "seed"
)


def shared_generators() -> dict[str, object]:
    """Returns the states of the generators of Python, numpy and torch that all code shares."""
    states: dict[str, object] = {"random": random.getstate()}
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        kind, words, *rest = numpy.get_state()
        states["numpy"] = (kind, words.tobytes(), *rest)
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):
        states["torch"] = torch.default_generator.get_state().numpy().tobytes()
    return states


class _SharedBatch(Pending):
    """A batch whose samples several threads decode; the last thread collates."""

    def __init__(self, batch: _native.Batch, work: Work) -> None:
        self._batch = batch
        self._work = work
        self._samples = batch.samples()
        self._labels = work.labels(batch)
        self._ids = batch.ids
        self._epoch, self._iteration = batch.epoch, batch.iteration
        self._decoded: list[Any] = [None] * len(self._samples)
        self.size = sum(len(sample) for sample in self._samples)
        self.parts = 0
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def run(self, start: int, end: int) -> None:
        """Decodes some of the samples."""
        try:
            for position in range(start, end):
                place = SamplePlace(self._epoch, self._iteration, position, self._ids[position])
                self._decoded[position] = self._work.decoded(
                    self._samples[position], self._labels[position], place
                )
            with self._lock:
                self.parts -= 1
                last = self.parts == 0
            if last:
                self._outcome = self._work.collated(self._decoded)
                self._finish()
        except BaseException as error:  # from collate_fn, or at the interpreter's end
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self._samples = []
        self._decoded = []
        self._ready.set()

    def result(self, timeout: float | None) -> Taken | None:
        if not self._ready.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._batch, self._outcome

    def waiting_for(self) -> str:
        return f"decode, on batch {self._batch.iteration} of {len(self._labels)} samples"


def decode_threads(wanted: int | None, local_ranks: int, spared: int = 0) -> int:
    """Returns the number of threads that decode.

    By default one for each core of this rank, without `spared` cores; at least half of them.
    """
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    mine = (cores or 1) // local_ranks
    return max(1, mine - min(spared, mine // 2))
