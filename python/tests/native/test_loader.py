"""Loaders and engines: waiting, sharing, failing, closing."""

import threading
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from belady import _native

from .helpers import SAMPLES, Start, batches, contents, ids, write_dataset


def slow(path: str) -> _native.Dataset:
    """A source that answers after a minute."""
    return _native.Dataset.open(path, throttle="1:1GB/s,latency:60s")


def test_epochs_are_whole_and_in_order(dataset: _native.Dataset, start: Start) -> None:
    loader = start(dataset, batch=7, epochs=2)
    seen = batches(loader)
    assert [(batch.epoch, batch.iteration) for batch in seen] == [
        (epoch, iteration) for epoch in range(2) for iteration in range(9)
    ]
    assert [sample for batch in seen for sample in batch.ids] == 2 * list(range(SAMPLES))
    assert loader.next() is None and loader.next() is None


def test_two_loaders_share_an_engine(dataset: _native.Dataset, even: _native.Dataset) -> None:
    engine = _native.Engine(tiers=[(None, 1 << 20)], threads=2)
    assert engine.threads == 2
    loaders = []
    for data in (dataset, even, dataset):
        orders = _native.Orders.distributed(samples=len(data), batch=6, seed=3)
        loaders.append(engine.start(data, orders, epochs=2, cache_share=0.5, staging=1 << 20))
    del engine
    for _ in range(20):
        for loader in loaders:
            batch = loader.next()
            assert batch is not None
            for sample in batch.samples():
                assert bytes(sample)[:400] == contents(sample.id, 400)
    assert all(loader.next() is None for loader in loaders)


def test_threads_that_ask_at_once_get_each_batch_once(
    dataset: _native.Dataset, start: Start
) -> None:
    loader = start(dataset, batch=3, epochs=30)
    seen: list[tuple[int, int]] = []

    def take() -> None:
        while (batch := loader.next(timeout=60)) is not None:
            assert [bytes(sample) for sample in batch.samples()] == [
                contents(sample) for sample in batch.ids
            ]
            seen.append((batch.epoch, batch.iteration))

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [(epoch, at) for epoch in range(30) for at in range(20)]


def test_other_threads_run_while_one_waits(dataset: _native.Dataset, start: Start) -> None:
    loader = start(slow(dataset.path))
    waited = threading.Event()

    def wait() -> None:
        with pytest.raises(_native.BeladyError, match="closed"):
            loader.next()
        waited.set()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    assert not waited.is_set()
    assert "samples of batch 0 of epoch 0" in loader.waiting_for()
    closing = threading.Thread(target=loader.close)
    closing.start()
    thread.join()
    assert waited.is_set()


def test_a_wait_has_an_end(dataset: _native.Dataset, start: Start) -> None:
    loader = start(slow(dataset.path))
    with pytest.raises(TimeoutError, match=r"no batch within 0\.2 s; .*batch 0 of epoch 0"):
        loader.next(timeout=0.2)
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        loader.next(timeout=-1)
    # Nothing is lost by it.
    orders = _native.Orders.distributed(samples=SAMPLES, batch=SAMPLES, order="sequential")
    data = _native.Dataset.open(dataset.path, throttle="1:1GB/s,latency:20ms")
    patient = start(data, orders=orders)
    while True:
        try:
            batch = patient.next(timeout=0.001)
        except TimeoutError:
            continue
        break
    assert batch is not None and batch.ids == list(range(SAMPLES))


def test_a_closed_loader_raises(dataset: _native.Dataset, start: Start) -> None:
    loader = start(dataset, epochs=None)
    batch = loader.next()
    assert batch is not None
    loader.close()
    loader.close()
    with pytest.raises(_native.BeladyError, match="this loader is closed"):
        loader.next()
    assert bytes(batch[0]) == contents(batch.ids[0])
    assert "it has ended" in loader.waiting_for()
    assert loader.stats()["delivered"]["samples"] == 8


def test_bad_samples_are_raised_skipped_or_replaced(tmp_path: Path, start: Start) -> None:
    data = _native.Dataset.open(str(write_dataset(tmp_path / "data")), snapshots=False)
    bad = Path(data.sample_path(5))
    bad.unlink()
    loader = start(data)
    with pytest.raises(_native.SampleError, match="sample 5") as caught:
        loader.next()
    assert (caught.value.sample, caught.value.path) == (5, str(bad))
    assert loader.next().ids == list(range(8, 16)), "it goes on with the batch after it"

    skipped = start(data, bad_samples="skip").next()
    assert skipped.ids == [0, 1, 2, 3, 4, 6, 7] and len(skipped) == 7
    assert [bytes(sample) for sample in skipped.samples()] == [contents(k) for k in skipped.ids]

    replaced = start(data, bad_samples="replace").next()
    assert len(replaced) == 8 and replaced.ids[5] != 5
    assert [bytes(sample) for sample in replaced.samples()] == [contents(k) for k in replaced.ids]
    # What the user writes to is never what others read.
    assert not any(memoryview(sample).readonly for sample in replaced.samples())


def test_a_loader_whose_batches_are_all_held_raises(dataset: _native.Dataset, start: Start) -> None:
    loader = start(dataset, batch=20, staging=80_000, epochs=2)
    held = []
    with pytest.raises(_native.StalledError, match="the caller holds all"):
        while True:
            held.append(loader.next(timeout=60))
    assert all(len(batch) == 20 for batch in held)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "clairvoyant"}, "no policy `clairvoyant`: .*hoose one of belady, "),
        ({"policy": "perfect"}, "exists in the simulator only"),
        ({"bad_samples": "ignore"}, 'must be "raise", "skip" or "replace", not "ignore"'),
        ({"cache_share": 1.5}, "from 0 to 1, not 1.5"),
        ({"staging": 100}, "staging buffer of .* is too small"),
    ],
)
def test_wrong_arguments_are_refused(
    dataset: _native.Dataset, start: Start, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        start(dataset, **options)


def test_an_engine_refuses_impossible_arguments() -> None:
    with pytest.raises(ValueError, match="threads"):
        _native.Engine(threads=0)
    with pytest.raises(ValueError, match="attempts"):
        _native.Engine(attempts=0)
    with pytest.raises(ValueError, match="timeout"):
        _native.Engine(timeout=0)
    with pytest.raises(ValueError, match="backoff"):
        _native.Engine(backoff=float("nan"))
    with pytest.raises(ValueError, match="nowhere.toml"):
        _native.Engine(system="nowhere.toml")


def test_every_policy_delivers_every_epoch(dataset: _native.Dataset, start: Start) -> None:
    for policy in ("belady", "nopfs", "staging", "naive", "monarch", "lru", "lobster"):
        loader = start(dataset, policy=policy, order="torch", epochs=3, ram=10_000)
        assert [len(batch) for batch in ids(loader)] == 3 * (7 * [8] + [4]), policy


def test_figures_are_plain_values(dataset: _native.Dataset, start: Start, tmp_path: Path) -> None:
    import json

    loader = start(dataset, epochs=3, trace=str(tmp_path / "trace.jsonl"))
    ids(loader)
    stats = loader.stats()
    assert stats["delivered"]["samples"] == 3 * SAMPLES
    assert stats["delivered"]["bytes"] == 3 * dataset.total_bytes
    assert stats["source"]["samples"] == SAMPLES, "read once"
    assert 0.6 < stats["hit_ratio"] < 0.7
    assert stats["held"][0]["samples"] == SAMPLES
    assert json.loads(json.dumps(stats)) == stats
    assert (tmp_path / "trace.jsonl").exists()


def test_metrics_are_served_with_the_token_only(
    dataset: _native.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _native.Engine()
    assert "belady_" in engine.metrics_text()
    assert engine.stats()["delivered"] == {"samples": 0, "bytes": 0}
    monkeypatch.delenv("BELADY_METRICS_TOKEN", raising=False)
    with pytest.raises(ValueError, match="set BELADY_METRICS_TOKEN"):
        engine.serve_metrics("127.0.0.1:0")
    monkeypatch.setenv("BELADY_METRICS_TOKEN", "hush")
    url = f"http://{engine.serve_metrics('127.0.0.1:0')}/metrics"
    with pytest.raises(HTTPError):
        urlopen(url)
    with urlopen(Request(url, headers={"Authorization": "Bearer hush"})) as answer:
        assert b"belady_" in answer.read()
    with pytest.raises(OSError, match="cannot serve metrics at nowhere"):
        engine.serve_metrics("nowhere")


def test_a_view_reads_what_caches_hold(dataset: _native.Dataset, tmp_path: Path) -> None:
    disk = str(tmp_path / "cache")
    engine = _native.Engine(tiers=[(None, 10_000), (disk, 10 << 20)])
    orders = _native.Orders.distributed(samples=SAMPLES, batch=10)
    loader = engine.start(dataset, orders, epochs=2)
    ids(loader)
    view = engine.view(dataset)
    before = engine.stats()["source"]["samples"]
    for sample in view.read([3, 1, 3]):
        assert bytes(sample) == contents(sample.id)
        assert sample.path == dataset.sample_path(sample.id) and sample.label == 0
        memoryview(sample)[:] = bytes(len(sample))
    assert [bytes(sample) for sample in view.read([3, 1])] == [contents(3), contents(1)]
    assert engine.stats()["source"]["samples"] == before, "a running job's cache has them"
    loader.close()
    del loader, view, engine

    # What an earlier run has left is found as well, and not changed. Where files may change, a copy
    # of one that is gone is none; where they never do, nothing is asked of them.
    compared = _native.Engine(tiers=[(disk, 10 << 20)]).view(dataset)
    unchanging = _native.Dataset.open(dataset.path, freshness="never")
    other = _native.Engine(tiers=[(disk, 10 << 20)]).view(unchanging)
    for path in Path(dataset.path).rglob("*.bin"):
        path.unlink()
    found = 0
    for wanted in range(SAMPLES):
        try:
            [sample] = other.read([wanted])
        except _native.SampleError as error:
            assert error.sample == wanted
        else:
            assert bytes(sample) == contents(wanted)
            found += 1
        with pytest.raises(_native.SampleError):
            compared.read([wanted])
    assert found > SAMPLES // 2
    with pytest.raises(IndexError):
        other.read([SAMPLES])
