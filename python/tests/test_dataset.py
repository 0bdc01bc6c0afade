"""Datasets: what they show, and as map-style datasets under torch's own loader."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import make_photos
from support import MAY_FORK, ids, make
from torch.utils.data import DataLoader as TorchLoader

import belady
from belady._dataset.progress import Bar


def test_it_looks_like_an_image_folder(data: belady.Dataset, photos: Path) -> None:
    assert len(data) == 60
    assert data.classes == ["cat", "dog", "owl"]
    assert data.class_to_idx == {"cat": 0, "dog": 1, "owl": 2}
    assert data.targets == [0] * 20 + [1] * 20 + [2] * 20
    assert data.paths[25] == str(photos / "dog/005.bin")
    assert data.paths[-1] == str(photos / "owl/019.bin")
    assert data.total_bytes == sum(data.size(i) for i in range(60))
    sample, label = data[25]
    assert (sample, label) == ((photos / "dog/005.bin").read_bytes(), 1)
    assert data[-1] == data[59]
    assert data[3:5] == [data[3], data[4]]
    with pytest.raises(IndexError, match="sample 60 does not exist: .* has 60"):
        data[60]


def test_other_formats(record_data: belady.Dataset, photos: Path) -> None:
    assert record_data[7] == (b"\x07" * 64, None)
    assert record_data.classes == [] and set(record_data.targets) == {-1}
    assert len(belady.flat(photos)) == 60
    assert belady.folder(photos).format == "folder"


def test_joined_datasets_follow_each_other(
    data: belady.Dataset, record_data: belady.Dataset
) -> None:
    both = belady.join(data, record_data)
    assert len(both) == 160
    assert both[60 + 7][0] == b"\x07" * 64
    assert both.fingerprint not in (data.fingerprint, record_data.fingerprint)
    assert pickle.loads(pickle.dumps(both))[160 - 1][0] == b"\x63" * 64
    assert sorted(id_ for batch in ids(make(both, batch_size=64)) for id_ in batch) == list(
        range(160)
    )
    with pytest.raises(TypeError, match="argument 1 is str"):
        belady.join(data, "more")  # type: ignore[arg-type]


def test_a_pickled_dataset_is_opened_again_and_compared(tmp_path: Path) -> None:
    root = make_photos(tmp_path / "changing", each=3)
    data = belady.open(root)
    pickled = pickle.dumps(data)
    again = pickle.loads(pickled)
    assert again[4] == data[4] and again == data
    (root / "cat" / "extra.bin").write_bytes(b"x")
    with pytest.raises(belady.BeladyError, match="has changed since it was listed"):
        len(pickle.loads(pickled))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_under_torchs_own_workers(data: belady.Dataset, method: str) -> None:
    loader: Any = TorchLoader(
        data,  # type: ignore[arg-type]
        batch_size=8,
        num_workers=2,
        multiprocessing_context=method,
    )
    samples = [sample for batch in loader for sample in batch[0]]
    assert samples == [sample for sample, _ in data]


def test_under_torchs_workers_while_a_loader_of_ours_runs(
    data: belady.Dataset, tmp_path: Path
) -> None:
    """Forked with our threads running, and served from the same cache on disk."""
    ours = make(data, batch_size=8, shuffle=True, cache=["ram:50KB", f"{tmp_path}:10MiB"])
    iterator = iter(ours)
    next(iterator)
    theirs: Any = TorchLoader(data, batch_size=8, num_workers=2)  # type: ignore[arg-type]
    for _ in range(2):
        samples = [sample for batch in theirs for sample in batch[0]]
        assert samples == [sample for sample, _ in data]
    assert sum(1 for _ in iterator) == len(ours) - 1


def test_single_samples_come_from_the_caches(data: belady.Dataset, tmp_path: Path) -> None:
    with make(data, batch_size=8, cache=f"{tmp_path}:10MiB") as loader:
        for _ in range(2):
            list(loader)
        view = loader.engine.view(data)
        before = loader.engine.stats()["source"]["samples"]
        assert [sample for sample, _ in view] == [sample for sample, _ in belady.open(data.path)]
        assert view[5][1] == 0
        assert loader.engine.stats()["source"]["samples"] == before
    copy = pickle.loads(pickle.dumps(view))
    assert copy[7] == data[7]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fork_that_imports_belady_before_or_after_is_quiet(photos: Path, when: str) -> None:
    script = f"""
        import os, sys
        when, photos = {when!r}, {str(photos)!r}
        if when == "before":
            import belady
            loader = belady.DataLoader(belady.open(photos), batch_size=8, shuffle=True, cache="ram:1MiB")
            iterator = iter(loader)
            next(iterator)
        child = os.fork()
        if child == 0:
            import belady
            data = belady.open(photos)
            assert len(data[3][0]) == data.size(3)
            mine = belady.DataLoader(data, batch_size=8, cache="ram:1MiB")
            assert sum(1 for _ in mine) == 8
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        if when == "before":
            assert sum(1 for _ in iterator) == 7
    """
    done = run(script)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_cache_is_written_again_while_a_forked_child_of_its_last_writer_lives(
    photos: Path, tmp_path: Path
) -> None:
    script = f"""
        import os, signal
        import belady
        def one_epoch():
            loader = belady.DataLoader(belady.open({str(photos)!r}), batch_size=8, cache="{tmp_path}:10MiB")
            for _ in loader:
                pass
            return loader
        first = one_epoch()
        child = os.fork()
        if child == 0:
            signal.pause()
        first.close()
        second = one_epoch()
        held = second.stats()["engine"]["held"][0]
        print(held["samples"], held["degraded"])
        second.close()
        os.kill(child, signal.SIGKILL)
    """
    done = run(script)
    assert (done.returncode, done.stdout + done.stderr) == (0, "60 None\n")


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *MAY_FORK, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("decode", ["None", "lambda sample, label: len(sample)"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["shuffle=True", "sampler=list(range(60))"])
def test_the_interpreter_ends_quietly_with_a_live_iterator(
    photos: Path, decode: str, workers: int, order: str
) -> None:
    # A lambda needs a fork, which is not the default of Python 3.14.
    method = "fork" if workers else None
    done = run(f"""
        import belady
        loader = belady.DataLoader(belady.open({str(photos)!r}), batch_size=2, {order},
                                   cache="ram:1MiB", decode={decode}, num_workers={workers},
                                   multiprocessing_context={method!r})
        iterator = iter(loader)
        next(iterator)
    """)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_importing_belady_imports_no_framework() -> None:
    done = run("""
        import sys, belady
        for name in ("torch", "jax", "tensorflow", "numpy"):
            assert name not in sys.modules, name
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_works_while_waiting(photos: Path) -> None:
    done = run(f"""
        import belady, os, signal, threading
        data = belady.open({str(photos)!r}, throttle="1:1KB/s")
        loader = belady.DataLoader(data, batch_size=20, cache="ram:1MiB")
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            next(iter(loader))
        except KeyboardInterrupt:
            print("interrupted")
        os._exit(0)
    """)
    assert done.stdout == "interrupted\n"


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def test_the_bar_shows_only_what_takes_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    terminal = Terminal()
    bar = Bar(terminal)  # type: ignore[arg-type]
    bar("listing", 5, None)
    assert terminal.text == ""
    now[0] += 1
    bar("listing", 1234, None)
    bar("listing", 1235, None)
    assert terminal.text == "\r\x1b[Klisting 1,234"
    bar.close()
    assert terminal.text.endswith("\r\x1b[K")


def test_a_view_keeps_its_engine(data: belady.Dataset) -> None:
    """The engine went at once, and the view was read past every cache without a word."""
    view = belady.Engine(cache="ram:1MiB").view(data)
    gc.collect()
    assert view._engine is not None and view._engine() is not None
    assert view[3] == data[3]


def test_labels_and_classes_are_listed_once(data: belady.Dataset) -> None:
    """`data.targets[i]` in a loop made a list of all labels each time."""
    assert data.targets is data.targets
    assert data.classes is data.classes


def test_a_changed_file_is_never_served_from_what_a_loader_left(tmp_path: Path) -> None:
    files = tmp_path / "data"
    files.mkdir()
    for number in range(20):
        (files / f"{number:02}").write_bytes(b"old %02d" % number)
    data = belady.flat(files, snapshots=False)
    engine = belady.Engine(cache=["ram:1MB", f"{tmp_path}/cache:10MB"])

    def seventh() -> bytes:
        with make(data, batch_size=4, engine=engine, on_error="skip") as loader:
            found = [bytes(one) for batch in loader for one in batch.samples if one.id == 7]
        return found[0] if found else b"none"

    assert seventh() == b"old 07"
    before = (files / "07").stat()
    (files / "07").write_bytes(b"new 07")
    os.utime(files / "07", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert seventh() == b"new 07"
    assert engine.view(data)[7][0] == b"new 07"
    (files / "07").write_bytes(b"newer ")
    assert seventh() == b"none", "a bad sample"


def test_freshness_is_one_of_three(photos: Path) -> None:
    for freshness in ("start", "epoch", "never"):
        assert len(belady.open(photos, freshness=freshness)) > 0
    with pytest.raises(ValueError, match="start, epoch, never"):
        belady.open(photos, freshness="often")
