"""`decode` and `collate_fn` in worker processes.

The staging buffer lies in memory that workers map for reading. A task names the places of a batch's
samples there, so nothing is copied on the way to a worker. Results are pickled: torch's tensors
travel through torch's own shared memory, other large buffers (numpy's arrays) through an anonymous
memory file, which the kernel frees with its last descriptor.

Batches go to workers in turn, and each worker answers in order, so batches stay in order. The
parent notices the death of a worker by its sentinel and reports its exit status. A worker ends when
its parent dies, whatever it is doing."""

from __future__ import annotations

import contextlib
import io
import mmap
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import connection, reduction
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

from .. import _native
from .._configuration import arguments
from ..errors import BeladyError, WorkerError
from .decode import Failure, Outcome, Work
from .feeds import AheadFeed, Pending, Taken
from .position import SamplePlace

#: The interval at which a worker checks that its parent lives, if the sentinel cannot tell.
_PARENT_SECONDS = 5.0
#: Smaller buffers travel through the pipe.
_INLINE_BYTES = 64 << 10
#: The alignment of buffers, for vector instructions.
_ALIGN = 64

#: A sample of a task: its place or its bytes, its label, its id.
Item = tuple[tuple[int, int] | bytes, Any, int]


class WorkerSetup(NamedTuple):
    """A worker's number, seed and initialisation."""

    number: int
    workers: int
    #: Common to all workers; each adds its number.
    seed: int
    init: Callable[[int], Any] | None
    #: For `torch.utils.data.get_worker_info()`; None if torch is not imported.
    dataset: Any


class Task(NamedTuple):
    """A batch for a worker."""

    epoch: int
    iteration: int
    items: list[Item]


class ProcessFeed(AheadFeed):
    """Decodes in worker processes."""

    def __init__(
        self,
        loader: _native.Loader,
        work: Work,
        *,
        workers: int,
        depth: int,
        staging: int,
        context: BaseContext,
        init: Callable[[int], Any] | None,
        seed: int,
        dataset: Any,
    ) -> None:
        super().__init__(loader, depth, staging)
        self._work = work
        memory = loader.shared_memory()
        if memory is None:
            raise WorkerError("the staging buffer is not shared; use num_workers=0")
        self._turn = 0
        self._workers: list[_Worker] = []
        try:
            for number in range(workers):
                shown = dataset if "torch" in sys.modules else None
                setup = WorkerSetup(number, workers, seed, init, shown)
                self._workers.append(_Worker(setup, context, memory, work))
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):
                raise
            raise WorkerError(
                f"worker {len(self._workers)} could not be started: {error}; with the start method "
                "spawn, decode and collate_fn have to be functions of a module"
            ) from error

    def submit(self, batch: _native.Batch) -> Pending:
        worker = self._workers[self._turn % len(self._workers)]
        self._turn += 1
        items: list[Item] = []
        size = 0
        labels = self._work.labels(batch)
        for index, (label, sample) in enumerate(zip(labels, batch.ids, strict=True)):
            place = batch.shared_range(index)
            items.append((bytes(batch[index]) if place is None else place, label, sample))
            size += 0 if place is None else place[1]
        worker.send(Task(batch.epoch, batch.iteration, items))
        return _Sent(batch, worker, size)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        super().close()
        for worker in self._workers:
            worker.join()


class _Worker:
    """A worker process, on its parent's side."""

    def __init__(
        self,
        setup: WorkerSetup,
        context: BaseContext,
        memory: tuple[int, int],
        work: Work,
    ) -> None:
        self.number = setup.number
        self.tasks, tasks = context.Pipe()
        self.process = context.Process(  # type: ignore[attr-defined]
            target=_main,
            args=(setup, tasks, _Descriptor(memory[0]), memory[1], work),
            name=f"belady-worker-{setup.number}",
            daemon=True,
        )
        self.process.start()
        tasks.close()

    def send(self, task: Task) -> None:
        # A worker that has died is noticed when its answer is awaited.
        with contextlib.suppress(OSError):
            self.tasks.send(task)

    def receive(self, timeout: float | None) -> Outcome:
        ready = connection.wait([self.tasks, self.process.sentinel], timeout)
        if not ready:
            raise TimeoutError
        if self.tasks not in ready:
            raise self._death()
        try:
            answer: _Answer = pickle.loads(self.tasks.recv_bytes())
            descriptor = _receive_descriptor(self.tasks) if answer.places else None
            return _unpack(answer, descriptor)
        except (EOFError, OSError):
            # torch may also ask a dead worker for the memory of a tensor that it sent.
            self.process.join(timeout=1)
            if self.process.is_alive():
                raise
            raise self._death() from None

    def _death(self) -> WorkerError:
        self.process.join(timeout=1)
        code = self.process.exitcode
        how = f"with exit status {code}"
        if code is not None and code < 0:
            how = f"by {signal.Signals(-code).name}"
        hint = _HINTS.get(code, "")
        return WorkerError(
            f"worker {self.number} (process {self.process.pid}) ended {how} while it was "
            f"decoding{hint}; see its output, or use num_workers=0 to decode in threads"
        )

    def stop(self) -> None:
        """Shuts the connection down, which wakes the waiting threads at both ends."""
        try:
            with socket.socket(fileno=os.dup(self.tasks.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.tasks.close()

    def join(self) -> None:
        self.process.join(timeout=1)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(timeout=1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


#: Likely causes of a worker's end, by its exit code.
_HINTS: dict[int | None, str] = {
    -signal.SIGKILL: "; it may have run out of memory",
    -signal.SIGSEGV: "; if decode writes to the bytes of a sample, let it copy them first: "
    "workers may only read them",
}


class _Sent(Pending):
    """A batch that a worker has."""

    def __init__(self, batch: _native.Batch, worker: _Worker, size: int) -> None:
        self._batch = batch
        self._worker = worker
        self.size = size

    def result(self, timeout: float | None) -> Taken | None:
        return self._batch, self._worker.receive(timeout)

    def waiting_for(self) -> str:
        return f"decode in worker {self._worker.number}, on batch {self._batch.iteration}"


class _Descriptor:
    """A file descriptor that can be sent to a child of any start method."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.number),)


def _received(duplicate: Any) -> _Descriptor:
    return _Descriptor(duplicate.detach())


class _Answer(NamedTuple):
    """A worker's answer: a pickled outcome, and the places of its large buffers.

    If there are such buffers, the descriptor of their memory follows.
    """

    pickled: bytes
    places: list[tuple[int, int]]


def _main(
    setup: WorkerSetup,
    tasks: connection.Connection,
    descriptor: _Descriptor,
    length: int,
    work: Work,
) -> None:
    """Runs a worker until its connection or its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    status = 1
    try:
        broken = _prepared(setup)
        memory = mmap.mmap(descriptor.number, length, mmap.MAP_SHARED, mmap.PROT_READ)
        _serve(tasks, memoryview(memory), work, broken)
    except (EOFError, ConnectionError):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        # Views of the ring may still be referenced, so the process ends without cleaning up.
        os._exit(status)


def _end_with_parent() -> None:
    """Ends the process when its parent ends, whatever it waits for.

    Workers that were forked later inherit the sentinel's write end and keep it open, so the
    parent's process id is polled too. (With a fork server it is that of the server.)"""
    parent, parent_id = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    while not connection.wait([parent.sentinel], _PARENT_SECONDS):
        if os.getppid() != parent_id:
            break
    os._exit(1)


def _prepared(setup: WorkerSetup) -> Outcome | None:
    """Seeds generators and calls `worker_init_fn`; returns its error as an outcome."""
    seed = setup.seed + setup.number
    random.seed(seed)
    if setup.dataset is not None:
        _set_up_torch(setup, seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    if setup.init is None:
        return None
    try:
        setup.init(setup.number)
    except Exception as error:
        lines = traceback.format_exc()
        failed = BeladyError(f"worker_init_fn failed in worker {setup.number}: {error}\n\n{lines}")
        return Outcome(failed, None, [])
    return None


def _set_up_torch(setup: WorkerSetup, seed: int) -> None:
    """Seeds torch, and sets what `torch.utils.data.get_worker_info()` returns."""
    import torch
    import torch.multiprocessing
    from torch.utils.data._utils import worker

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    worker._worker_info = worker.WorkerInfo(
        id=setup.number, num_workers=setup.workers, seed=seed, dataset=setup.dataset
    )


def _serve(
    tasks: connection.Connection, ring: memoryview, work: Work, broken: Outcome | None
) -> None:
    """Answers tasks. Raises EOFError when the connection ends."""
    while True:
        task = tasks.recv()
        answer, descriptor = _packed(broken or _worked(work, ring, task))
        tasks.send_bytes(pickle.dumps(answer))
        if descriptor is not None:
            _send_descriptor(tasks, descriptor)
            os.close(descriptor)


# Not by `multiprocessing.reduction`: from 3.14 on its sender waits for a byte of acknowledgement,
# and may read the next task in its place.


def _send_descriptor(line: connection.Connection, descriptor: int) -> None:
    with socket.fromfd(line.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        socket.send_fds(end, [b"."], [descriptor])


def _receive_descriptor(line: connection.Connection) -> int:
    with socket.fromfd(line.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        _, descriptors, _, _ = socket.recv_fds(end, 1, 1)
    if not descriptors:
        raise EOFError
    return descriptors[0]


def _worked(work: Work, ring: memoryview, task: Task) -> Outcome:
    samples = []
    for position, (place, label, sample) in enumerate(task.items):
        if isinstance(place, bytes):
            data = memoryview(place)
        else:
            data = ring[place[0] : place[0] + place[1]]
        where = SamplePlace(task.epoch, task.iteration, position, sample)
        samples.append(work.decoded(data, label, where))
    try:
        return work.collated(samples)
    except Exception as error:
        lines = traceback.format_exc()
        return Outcome(BeladyError(f"collating a batch failed: {error}\n\n{lines}"), None, [])


def _packed(outcome: Outcome) -> tuple[_Answer, int | None]:
    """Pickles an outcome; returns the descriptor of the memory with its large buffers."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = _dumps(outcome, buffers)
    except Exception as error:
        buffers.clear()
        pickled = _dumps(_unpicklable(outcome, error), buffers)
    if not buffers:
        return _Answer(pickled, []), None
    views = [buffer.raw() for buffer in buffers]
    places, end = [], 0
    for view in views:
        places.append((end, view.nbytes))
        end += -(-view.nbytes // _ALIGN) * _ALIGN
    descriptor = os.memfd_create("belady-answer")
    os.ftruncate(descriptor, max(1, end))
    with mmap.mmap(descriptor, max(1, end)) as memory:
        for (start, length), view in zip(places, views, strict=True):
            memory[start : start + length] = view
    return _Answer(pickled, places), descriptor


def _dumps(outcome: Outcome, buffers: list[pickle.PickleBuffer]) -> bytes:
    """Pickles as multiprocessing does, which sends tensors by shared memory."""

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _INLINE_BYTES:
            return True  # in the pickle
        buffers.append(buffer)
        return False

    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, 5, buffer_callback=keep_in_band)
    pickler.dispatch_table = reduction.ForkingPickler(io.BytesIO()).dispatch_table
    pickler.dump((outcome.value, outcome.kept, [_portable(f) for f in outcome.failures]))
    return stream.getvalue()


def _portable(failure: Failure) -> Failure:
    """Returns the failure with an error that can be pickled."""
    try:
        pickle.loads(pickle.dumps(failure.error))
    except Exception:
        kind = type(failure.error).__name__
        return failure._replace(error=BeladyError(f"{kind}: {failure.error}"))
    return failure


def _unpicklable(outcome: Outcome, error: Exception) -> Outcome:
    failed = BeladyError(
        f"what decode or collate_fn returned ({type(outcome.value).__name__}) cannot be sent to "
        f"the training process: {error}; return plain values, arrays or tensors, or use "
        "num_workers=0"
    )
    return Outcome(failed, None, [])


def _unpack(answer: _Answer, descriptor: int | None) -> Outcome:
    """Returns a worker's outcome. Raises the error that the worker reports."""
    buffers: list[memoryview] = []
    if descriptor is not None:
        try:
            memory = memoryview(mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)
        buffers = [memory[start : start + length] for start, length in answer.places]
    value, kept, failures = pickle.loads(answer.pickled, buffers=buffers)
    if isinstance(value, BeladyError):
        raise value
    return Outcome(value, kept, failures)


def context_of(method: object) -> BaseContext:
    """Returns the context of a start method: a name, a context, or None for the default."""
    if method is None:
        return multiprocessing.get_context()
    if isinstance(method, str):
        names = multiprocessing.get_all_start_methods()
        return multiprocessing.get_context(
            arguments.choice(method, "multiprocessing_context", names)
        )
    if isinstance(method, BaseContext):
        return method
    raise TypeError(
        "multiprocessing_context has to be fork, spawn, forkserver or a context of "
        f"multiprocessing, not {type(method).__name__}"
    )
