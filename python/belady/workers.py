"""`decode` and `collate_fn` in worker processes.

The staging buffer lies in memory that workers map for reading. A task says only where the
samples of a batch lie; nothing is copied on the way to a worker. What comes back is pickled:
tensors of torch travel through torch's own shared memory, other large buffers (numpy's arrays)
through an anonymous file in memory, which vanishes with the last who holds it.

Batches go to workers in turn, and each worker answers in order, so batches stay in order. A
worker that dies is noticed by its sentinel and named by its exit status; one whose parent dies
ends too, whatever it is doing.
"""

from __future__ import annotations

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

from . import _native, arguments
from .decode import Failure, Outcome, Work
from .draws import Place
from .errors import BeladyError, WorkerError
from .feed import Ahead, Pending, Taken

#: How often a worker looks whether its parent still lives, where nothing tells it.
_PARENT_SECONDS = 5.0
#: Below this, buffers travel through the pipe.
_INLINE_BYTES = 64 << 10
#: Buffers begin at multiples of this, as arrays like it.
_ALIGN = 64

#: A sample as a worker is told of it: where it lies, or its bytes; its label; its id.
Item = tuple[tuple[int, int] | bytes, Any, int]


class Post(NamedTuple):
    """What a worker is told of itself and of the others."""

    number: int
    workers: int
    #: Of all of them; a worker adds its number.
    seed: int
    init: Callable[[int], Any] | None
    #: For `torch.utils.data.get_worker_info()`; None where torch is not used.
    dataset: Any


class Task(NamedTuple):
    """A batch as a worker is told of it."""

    epoch: int
    iteration: int
    items: list[Item]


class Processes(Ahead):
    """A group of worker processes."""

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
                told = dataset if "torch" in sys.modules else None
                post = Post(number, workers, seed, init, told)
                self._workers.append(_Worker(post, context, memory, work))
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):
                raise
            raise WorkerError(
                f"worker {len(self._workers)} could not be started: {error}; with the start "
                "method spawn, decode and collate_fn have to be functions of a module"
            ) from error

    def submit(self, batch: _native.Batch) -> Pending:
        worker = self._workers[self._turn % len(self._workers)]
        self._turn += 1
        items: list[Item] = []
        size = 0
        labels = self._work.labels(batch)
        for index, (label, sample) in enumerate(zip(labels, batch.ids, strict=True)):
            place = batch.place(index)
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
    """One process, as its parent sees it."""

    def __init__(
        self,
        post: Post,
        context: BaseContext,
        memory: tuple[int, int],
        work: Work,
    ) -> None:
        self.number = post.number
        self.tasks, tasks = context.Pipe()
        self.process = context.Process(  # type: ignore[attr-defined]
            target=_main,
            args=(post, tasks, _Descriptor(memory[0]), memory[1], work),
            name=f"belady-worker-{post.number}",
            daemon=True,
        )
        self.process.start()
        tasks.close()

    def send(self, task: Task) -> None:
        try:
            self.tasks.send(task)
        except OSError:
            pass  # it has died; whoever waits for the answer will find out

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
            # Also where torch asks a worker for the memory of a tensor that it sent before.
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
            f"decoding{hint}; see what it printed, or use num_workers=0 to decode in threads"
        )

    def stop(self) -> None:
        """Cuts the line, which ends also who waits at either end of it."""
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


#: What may be behind the end of a worker, by its exit code.
_HINTS: dict[int | None, str] = {
    -signal.SIGKILL: "; it may have run out of memory",
    -signal.SIGSEGV: "; if decode writes to the bytes of a sample, let it copy them first: "
    "workers may only read them",
}


class _Sent(Pending):
    """A batch that is with a worker."""

    def __init__(self, batch: _native.Batch, worker: _Worker, size: int) -> None:
        self._batch = batch
        self._worker = worker
        self.size = size

    def result(self, timeout: float | None) -> Taken | None:
        return self._batch, self._worker.receive(timeout)

    def waiting_for(self) -> str:
        return f"decode in worker {self._worker.number}, on batch {self._batch.iteration}"


class _Descriptor:
    """A file descriptor that finds its way into a child however that is started."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.number),)


def _received(duplicate: Any) -> _Descriptor:
    return _Descriptor(duplicate.detach())


class _Answer(NamedTuple):
    """What a worker sends: an outcome, pickled, and where its large buffers lie.

    If there are such, the descriptor of the memory follows.
    """

    pickled: bytes
    places: list[tuple[int, int]]


def _main(
    post: Post,
    tasks: connection.Connection,
    descriptor: _Descriptor,
    length: int,
    work: Work,
) -> None:
    """What a worker does until it is told to end, or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    status = 1
    try:
        broken = _prepared(post)
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
        # Whoever still looks at the ring keeps it mapped; the process ends now anyway.
        os._exit(status)


def _end_with_parent() -> None:
    """Ends the process when its parent is gone, also where it waits for somebody else.

    Brothers that were forked later hold what tells of the end, so the parent's number is looked
    at too. (With a fork server it is that of the server.)
    """
    parent, born_to = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    while not connection.wait([parent.sentinel], _PARENT_SECONDS):
        if os.getppid() != born_to:
            break
    os._exit(1)


def _prepared(post: Post) -> Outcome | None:
    """Seeds what draws, and calls the user's function; what that raised, if it did."""
    seed = post.seed + post.number
    random.seed(seed)
    if post.dataset is not None:
        _tell_torch(post, seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    if post.init is None:
        return None
    try:
        post.init(post.number)
    except Exception as error:
        lines = traceback.format_exc()
        told = BeladyError(f"worker_init_fn failed in worker {post.number}: {error}\n\n{lines}")
        return Outcome(told, None, [])
    return None


def _tell_torch(post: Post, seed: int) -> None:
    """Seeds torch, and lets `torch.utils.data.get_worker_info()` answer as in a worker of torch's."""
    import torch
    import torch.multiprocessing  # noqa: F401  (tensors then travel by shared memory)
    from torch.utils.data._utils import worker

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    worker._worker_info = worker.WorkerInfo(
        id=post.number, num_workers=post.workers, seed=seed, dataset=post.dataset
    )


def _serve(
    tasks: connection.Connection, ring: memoryview, work: Work, broken: Outcome | None
) -> None:
    """Answers tasks; raises EOFError when no more come."""
    while True:
        task = tasks.recv()
        answer, descriptor = _packed(broken or _worked(work, ring, task))
        tasks.send_bytes(pickle.dumps(answer))
        if descriptor is not None:
            _send_descriptor(tasks, descriptor)
            os.close(descriptor)


# Not by `multiprocessing.reduction`: from 3.14 on its sender waits for a byte of acknowledgement, in whose
# place the next task may be there already.


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
        where = Place(task.epoch, task.iteration, position, sample)
        samples.append(work.decoded(data, label, where))
    try:
        return work.collated(samples)
    except Exception as error:
        lines = traceback.format_exc()
        return Outcome(BeladyError(f"collating a batch failed: {error}\n\n{lines}"), None, [])


def _packed(outcome: Outcome) -> tuple[_Answer, int | None]:
    """Pickled, with large buffers apart, in memory of which there is a descriptor."""
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
    """As multiprocessing pickles, which knows how tensors travel."""

    def apart(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _INLINE_BYTES:
            return True  # within
        buffers.append(buffer)
        return False

    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, 5, buffer_callback=apart)
    pickler.dispatch_table = reduction.ForkingPickler(io.BytesIO()).dispatch_table
    pickler.dump((outcome.value, outcome.kept, [_portable(f) for f in outcome.failures]))
    return stream.getvalue()


def _portable(failure: Failure) -> Failure:
    """The failure with an error that can be pickled."""
    try:
        pickle.loads(pickle.dumps(failure.error))
    except Exception:
        kind = type(failure.error).__name__
        return failure._replace(error=BeladyError(f"{kind}: {failure.error}"))
    return failure


def _unpicklable(outcome: Outcome, error: Exception) -> Outcome:
    told = BeladyError(
        f"what decode or collate_fn returned ({type(outcome.value).__name__}) cannot be sent to "
        f"the training process: {error}; return plain values, arrays or tensors, or use "
        "num_workers=0"
    )
    return Outcome(told, None, [])


def _unpack(answer: _Answer, descriptor: int | None) -> Outcome:
    """The parent's side: an outcome; raises what the worker could not do."""
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
    """The way in which workers are started: a name, a context, or None for the usual one."""
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
