"""`decode` and `collate_fn`, in threads and in processes: the same results in the same order."""

from __future__ import annotations

import concurrent.futures.thread
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support import ids, make, read_all

import belady
from belady._pipeline.decode import Failure, kept_positions

WAYS = [{"num_workers": 0}, {"num_workers": 2}]
ways = pytest.mark.parametrize("way", WAYS, ids=["threads", "processes"])


def length(sample: Any, label: int) -> int:
    return len(sample)


def both(sample: Any, label: int) -> tuple[int, int]:
    return sum(bytes(sample)) % 256, label


def as_array(sample: Any, label: int) -> np.ndarray[Any, Any]:
    return np.full((300, 300), len(sample), np.float32)


def as_tensor(sample: Any, label: int) -> tuple[torch.Tensor, int]:
    return torch.full((3, 64, 64), float(len(sample))), label


def as_dict(sample: Any, label: int) -> dict[str, Any]:
    return {"size": len(sample), "name": str(label)}


def view(sample: Any, label: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(sample, np.uint8)[:50]


@ways
def test_a_plain_value_goes_beside_the_label(data: belady.Dataset, way: dict[str, Any]) -> None:
    loader = make(data, batch_size=7, shuffle=True, decode=length, **way)
    for _ in range(2):
        for batch in loader:
            sizes, labels = batch
            assert [int(size) for size in sizes] == [data.size(id_) for id_ in batch.ids]
            assert [int(label) for label in labels] == [data.targets[id_] for id_ in batch.ids]
            assert batch.paths == [data.paths[id_] for id_ in batch.ids]
    loader.close()


@ways
def test_order_and_length_are_those_without_decode(
    data: belady.Dataset, way: dict[str, Any]
) -> None:
    plain = make(data, batch_size=7, shuffle=True)
    loader = make(data, batch_size=7, shuffle=True, decode=both, **way)
    for _ in range(3):
        assert ids(loader) == ids(plain)
    loader.close()


@ways
def test_arrays_tensors_and_dicts(data: belady.Dataset, way: dict[str, Any]) -> None:
    with make(data, batch_size=6, decode=as_array, staging="2MiB", **way) as loader:
        for images, _ in loader:
            assert images.shape == (6, 300, 300) and images.dtype == np.float32
            images += 1  # what one gets is one's own
    with make(data, batch_size=6, decode=as_tensor, **way) as loader:
        for batch in loader:
            assert batch.samples.shape == (6, 3, 64, 64)
            assert batch.samples[:, 0, 0, 0].tolist() == [data.size(id_) for id_ in batch.ids]
            assert batch.labels.dtype == torch.int64
    with make(data, batch_size=6, decode=as_dict, **way) as loader:
        for batch in loader:
            assert set(batch) == {"size", "name"}


@ways
def test_the_bytes_that_decode_reads_do_not_change(
    data: belady.Dataset, way: dict[str, Any]
) -> None:
    """Views of the staging buffer, kept for long: by then it was used many times over."""
    expected = {id_: sample[:50] for id_, (sample, _) in enumerate(data)}
    loader = make(data, batch_size=4, decode=view, collate_fn=list, staging="2MiB", **way)
    kept = []
    for _ in range(2):
        for batch in loader:
            kept.append((batch.ids, [pair[0] for pair in batch]))
    for batch_ids, samples in kept:
        assert [bytes(sample) for sample in samples] == [expected[id_] for id_ in batch_ids]
    loader.close()


@ways
def test_keeping_what_was_decoded_keeps_no_staging_buffer(
    data: belady.Dataset, way: dict[str, Any]
) -> None:
    with make(data, batch_size=10, decode=length, staging="200KB", **way) as loader:
        kept = [batch for _ in range(4) for batch in loader]
    assert len(kept) == 24
    assert kept[7].paths == [data.paths[id_] for id_ in kept[7].ids]


def pairs(samples: list[Any]) -> list[tuple[int, int]]:
    return [(len(sample), label) for sample, label in samples]


@ways
def test_collate_fn_gets_a_list_as_in_torch(data: belady.Dataset, way: dict[str, Any]) -> None:
    with make(data, batch_size=10, collate_fn=pairs, **way) as loader:
        for batch in loader:
            assert list(batch) == [(data.size(i), data.targets[i]) for i in batch.ids]


def named(samples: list[Any]) -> dict[str, Any]:
    return {"count": len(samples)}


@ways
def test_a_dict_from_collate_fn_is_delivered_unchanged(
    data: belady.Dataset, way: dict[str, Any]
) -> None:
    with make(data, batch_size=25, collate_fn=named, **way) as loader:
        assert list(loader) == [{"count": 25}, {"count": 25}, {"count": 10}]


@given(st.lists(st.booleans(), max_size=12), st.sampled_from(["skip", "replace"]))
def test_which_samples_are_kept(good: list[bool], on_error: str) -> None:
    samples = [
        None if fine else Failure(p, None, "", "it is broken") for p, fine in enumerate(good)
    ]
    fine = [p for p, ok in enumerate(good) if ok]
    expected = fine
    if on_error == "replace" and fine:
        expected = [
            next((q for q in range(p, len(good)) if good[q]), fine[0]) for p in range(len(good))
        ]
    assert kept_positions(samples, on_error) == expected


def fails_on_owls(sample: Any, label: int) -> int:
    if label == 2:
        raise KeyError("no owls please")
    return len(sample)


@ways
def test_an_error_in_decode_names_the_sample_and_the_users_line(
    data: belady.Dataset, way: dict[str, Any]
) -> None:
    loader = make(data, batch_size=20, decode=fails_on_owls, **way)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    with pytest.raises(belady.DecodeError, match="no owls please") as raised:
        next(iterator)
    assert raised.value.path == data.paths[40]
    assert raised.value.sample == 40
    assert data.paths[40] in str(raised.value)
    assert "in fails_on_owls" in str(raised.value)
    assert 'raise KeyError("no owls please")' in str(raised.value)
    assert isinstance(raised.value.__cause__, KeyError)
    assert isinstance(raised.value, belady.SampleError)
    with pytest.raises(StopIteration):
        next(iterator)
    loader.close()


@ways
def test_samples_that_fail_are_skipped_or_replaced(
    data: belady.Dataset, way: dict[str, Any]
) -> None:
    with make(data, batch_size=30, decode=fails_on_owls, on_error="skip", **way) as loader:
        assert [len(batch.ids) for batch in loader] == [30, 10]
        assert loader.stats()["failures"] == 20
    with make(data, batch_size=30, decode=fails_on_owls, on_error="replace", **way) as loader:
        batches = list(loader)
        assert [len(batch.ids) for batch in batches] == [30, 30]
        assert batches[1].ids == [*range(30, 40), *[30] * 20]
    with make(data, batch_size=20, decode=fails_on_owls, on_error="skip", **way) as loader:
        assert len(list(loader)) == 2  # nothing is left of the third


@ways
def test_too_many_failures_are_an_error(data: belady.Dataset, way: dict[str, Any]) -> None:
    more = {"on_error": "skip", "max_failures": 5, **way}
    with make(data, batch_size=6, decode=fails_on_owls, **more) as loader:
        with pytest.raises(belady.BeladyError, match="max_failures is 5; the last was .*owl"):
            list(loader)


def bad_collate(samples: list[Any]) -> Any:
    raise ValueError("cannot be put together")


@ways
def test_an_error_in_collate_is_raised(data: belady.Dataset, way: dict[str, Any]) -> None:
    with make(data, batch_size=6, decode=length, collate_fn=bad_collate, **way) as loader:
        with pytest.raises((ValueError, belady.BeladyError), match="cannot be put together"):
            list(loader)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_however_they_are_started(data: belady.Dataset, method: str) -> None:
    loader = make(data, batch_size=20, decode=both, num_workers=1, multiprocessing_context=method)
    with loader:
        values = [int(value) for batch in loader for value in batch.samples]
    assert values == [sum(sample) % 256 for sample, _ in data]


def where(sample: Any, label: int) -> int:
    return os.getpid()


def test_processes_are_processes_and_threads_are_threads(data: belady.Dataset) -> None:
    with make(data, batch_size=10, decode=where, num_workers=2) as loader:
        pids = {int(pid) for batch in loader for pid in batch.samples}
    assert len(pids) == 2 and os.getpid() not in pids
    with make(data, batch_size=10, decode=where) as loader:
        assert {int(pid) for batch in loader for pid in batch.samples} == {os.getpid()}


INITIALISED = [-1]


def initialise(worker: int) -> None:
    INITIALISED[0] = worker


def tell(sample: Any, label: int) -> int:
    return INITIALISED[0]


def test_worker_init_fn_is_called_in_each_worker(data: belady.Dataset) -> None:
    with make(data, batch_size=10, decode=tell, num_workers=2, worker_init_fn=initialise) as loader:
        assert [int(batch.samples[0]) for batch in loader] == [0, 1, 0, 1, 0, 1]
    assert INITIALISED == [-1]


def refuse(worker: int) -> None:
    raise OSError("no device for you")


def test_an_error_of_worker_init_fn_is_raised(data: belady.Dataset) -> None:
    with make(data, decode=tell, num_workers=1, worker_init_fn=refuse) as loader:
        with pytest.raises(belady.BeladyError, match="worker_init_fn failed .*no device for you"):
            next(iter(loader))


def dies(sample: Any, label: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_an_error_names_a_worker_that_dies(data: belady.Dataset) -> None:
    with make(data, batch_size=5, decode=dies, num_workers=2) as loader:
        with pytest.raises(belady.WorkerError, match=r"worker 0 \(process \d+\) ended by SIGKILL"):
            list(loader)


def a_lock(sample: Any, label: int) -> Any:
    return (threading.Lock(),)


def test_a_result_that_cannot_be_pickled_is_an_error(data: belady.Dataset) -> None:
    with make(data, batch_size=5, decode=a_lock, num_workers=1) as loader:
        with pytest.raises(belady.BeladyError, match="cannot be sent to the training process"):
            list(loader)


def test_a_function_that_cannot_be_spawned_is_an_error(data: belady.Dataset) -> None:
    loader = make(data, decode=lambda s, y: 1, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(belady.WorkerError, match="functions of a module"):
        next(iter(loader))


def test_workers_end_with_the_loader(data: belady.Dataset) -> None:
    loader = make(data, batch_size=10, decode=where, num_workers=2)
    pids = {int(pid) for batch in loader for pid in batch.samples}
    loader.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def kind(sample: Any, label: int) -> tuple[str, int]:
    return type(sample).__name__, len(sample[:8])


@ways
def test_decode_gets_a_view_that_can_be_cut_in_every_batch(
    data: belady.Dataset, way: dict[str, Any]
) -> None:
    with make(data, batch_size=7, decode=kind, **way) as loader:
        kinds = {(name, int(cut)) for names, cuts in loader for name, cut in zip(names, cuts)}
    assert kinds == {("memoryview", 8)}


@ways
def test_epochs_continue_after_an_early_end(data: belady.Dataset, way: dict[str, Any]) -> None:
    plain = make(data, batch_size=7, shuffle=True)
    loader = make(data, batch_size=7, shuffle=True, decode=both, **way)
    with loader:
        for stop in (1, 3, 9, 2, 9):
            got = [batch.ids for batch, _ in zip(loader, range(stop))]
            assert got == [batch.ids for batch, _ in zip(plain, range(stop))]


def test_a_slow_consumer_does_not_look_like_a_stall(data: belady.Dataset) -> None:
    """Batches that are decoded ahead hold at most half of the staging buffer."""
    loader = make(
        data, batch_size=20, shuffle=True, decode=view, collate_fn=list, staging="400KB",
        prefetch_factor=50,
    )  # fmt: skip
    with loader:
        for _ in range(2):
            for _ in loader:
                time.sleep(0.01)


def random_value(sample: Any, label: int) -> float:
    return random.random()


def test_workers_draw_different_numbers(data: belady.Dataset) -> None:
    with make(data, batch_size=30, decode=random_value, num_workers=2) as loader:
        first, second = (batch.samples.tolist() for batch in loader)
    assert len({*first, *second}) == 60


def test_raw_bytes_are_those_of_the_files(data: belady.Dataset) -> None:
    loader = make(data, batch_size=7, shuffle=True)
    for _ in range(3):
        for batch in loader:
            for sample, path in zip(read_all(batch), batch.paths, strict=True):
                with open(path, "rb") as file:
                    assert sample == file.read()


def test_a_fork_server_is_not_taken_for_a_parent_that_died(data: belady.Dataset) -> None:
    """Workers ended when they had nothing to do for five seconds."""
    loader = make(
        data, batch_size=20, decode=both, num_workers=1, prefetch_factor=1,
        multiprocessing_context="forkserver",
    )  # fmt: skip
    with loader:
        iterator = iter(loader)
        next(iterator)
        time.sleep(6)
        assert sum(1 for _ in iterator) == 2


def large_and_larger(samples: list[Any]) -> list[Any]:
    return [np.zeros(100_000, np.uint8), bytes(2_000_000)]


def test_long_tasks_and_long_answers_do_not_wait_for_each_other(
    record_data: belady.Dataset,
) -> None:
    """The feeding thread waited for the worker to take a task, the worker for the parent to take
    its answer, and the user for the feeding thread."""
    many = make(
        record_data, batch_size=4000, sampler=list(range(100)) * 1000, num_workers=1,
        collate_fn=large_and_larger, prefetch_factor=16, staging="16MiB",
    )  # fmt: skip
    with many as loader:
        assert sum(1 for _ in loader) == 25


ORPHAN = """
import os, signal, sys, time
import belady

def decode(sample, label):
    return bytes(1_000_000)

loader = belady.DataLoader(belady.open(sys.argv[1]), batch_size=10, decode=decode, cache=[],
                           num_workers=2, multiprocessing_context=sys.argv[2])
if __name__ == "__main__":
    iterator = iter(loader)
    next(iterator)
    import multiprocessing
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(1)  # answers that are not received
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_do_not_outlive_a_parent_that_was_killed(
    data: belady.Dataset, tmp_path: Path, method: str
) -> None:
    """Those that waited for an answer to be taken stayed for ever."""
    script, listed = tmp_path / "orphan.py", tmp_path / "listed"
    script.write_text(ORPHAN)
    with listed.open("w") as output:
        subprocess.run([sys.executable, script, data.path, method], stdout=output, check=False)
    workers = [int(pid) for pid in listed.read_text().split()]
    assert len(workers) == 2
    until = time.monotonic() + 60
    while any(map(is_running, workers)):
        assert time.monotonic() < until, "workers are left"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def says_and_leaves(sample: Any, label: int) -> int:
    print("heard from decode")
    if label == 2:
        sys.exit("enough owls")
    return 1


def test_the_output_of_a_worker_is_not_lost(
    data: belady.Dataset, capfd: pytest.CaptureFixture[str]
) -> None:
    """Output was not flushed, and sys.exit in decode looked like a good end."""
    # Not by a fork server, whose output is that of the test which was the first to need one.
    how = {"num_workers": 1, "multiprocessing_context": "spawn"}
    with make(data, batch_size=20, decode=says_and_leaves, **how) as loader:
        with pytest.raises(belady.WorkerError, match="exit status 1"):
            list(loader)
    printed = capfd.readouterr()
    assert "heard from decode" in printed.out
    assert "SystemExit: enough owls" in printed.err


def writes(sample: Any, label: int) -> int:
    tensor = torch.frombuffer(sample, dtype=torch.uint8)
    tensor.add_(1)
    return int(tensor[0])


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_the_error_of_writing_to_a_sample_in_a_worker_says_what_to_do(data: belady.Dataset) -> None:
    with make(data, batch_size=20, decode=writes, num_workers=1) as loader:
        with pytest.raises(belady.WorkerError, match="let it copy them first"):
            list(loader)
    assert len(list(make(data, batch_size=20, decode=writes))) == 3


class Interrupted:
    """A collate_fn in which Ctrl-C comes with every third batch."""

    calls = 0

    def __call__(self, samples: list[Any]) -> list[Any]:
        self.calls += 1
        if self.calls % 3 == 0:
            raise KeyboardInterrupt
        return [len(samples), 0]


@pytest.mark.parametrize("decode", [None, length], ids=["direct", "threads"])
def test_no_batch_is_lost_to_ctrl_c(data: belady.Dataset, decode: Any) -> None:
    """The batch was gone, and the first one of the next epoch came at the end of this one."""
    expected = ids(make(data, batch_size=7, shuffle=True))
    loader = make(data, batch_size=7, shuffle=True, decode=decode, collate_fn=Interrupted())
    iterator, seen, interrupts = iter(loader), [], 0
    while True:
        try:
            seen.append(next(iterator).ids)
        except KeyboardInterrupt:
            interrupts += 1
        except StopIteration:
            break
    assert seen == expected
    assert interrupts > 0
    loader.close()


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    import multiprocessing

    yield
    for child in multiprocessing.active_children():
        child.join(timeout=5)
    assert multiprocessing.active_children() == []


def test_a_loader_that_is_collected_while_its_thread_submits_a_batch_does_not_hang(
    data: belady.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector closed the loader on the thread that held the lock of the loader's own pool."""
    collected = threading.Event()
    made: Any = concurrent.futures.thread._WorkItem

    def collect(*arguments: Any) -> Any:
        if not collected.is_set():
            collected.set()
            loader._reader.stop()
        return made(*arguments)

    monkeypatch.setattr(concurrent.futures.thread, "_WorkItem", collect)
    with make(data, batch_size=4, decode=lambda sample, label: len(sample)) as loader:
        iterator = iter(loader)
        next(iterator)
        assert collected.wait(60)
        for thread in threading.enumerate():
            if thread.name == "belady-feed":
                thread.join(60)
                assert not thread.is_alive()
        with pytest.raises(belady.BeladyError, match="the loader was closed"):
            next(iterator)
