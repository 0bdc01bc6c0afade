"""The loader itself: epochs, ends, errors, waits, figures."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import urllib.request
from pathlib import Path

import pytest
from conftest import make_photos
from support import ids, make

import belady


def test_one_iter_is_one_epoch(data: belady.Dataset) -> None:
    loader = make(data, batch_size=16, shuffle=True, epochs=3)
    epochs = [ids(loader) for _ in range(3)]
    for epoch in epochs:
        assert sorted(id_ for batch in epoch for id_ in batch) == list(range(60))
    assert epochs[0] != epochs[1]
    assert loader.epoch == 3


def test_more_epochs_than_announced_can_be_read(data: belady.Dataset) -> None:
    bounded, open_ended = (make(data, batch_size=16, shuffle=True, epochs=n) for n in (2, None))
    assert [ids(bounded) for _ in range(5)] == [ids(open_ended) for _ in range(5)]


def test_images_and_labels_unpack(data: belady.Dataset) -> None:
    for samples, labels in make(data, batch_size=16):
        assert len(samples) == len(labels)
    batch = next(iter(make(data, batch_size=16)))
    assert batch.samples is batch[0] and batch.labels is batch[1]
    assert (batch.epoch, batch.iteration) == (0, 0)
    assert batch.samples[3].path == data.paths[3] and batch.samples[3].id == 3


def test_attributes_of_torchs_loader(data: belady.Dataset) -> None:
    loader = make(data, batch_size=16, drop_last=True, num_workers=4)
    assert loader.dataset is data
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (16, True, 4)
    assert len(loader) == 3 == len(list(loader))


def test_a_loader_that_restarts_reuses_its_memory(data: belady.Dataset) -> None:
    """An early end that could not be foreseen restarts the pipeline."""
    loader = make(data, batch_size=16, shuffle=True, cache="ram:1MiB")
    for _ in range(2):
        for _batch in loader:
            pass
    loader.set_epoch(7)
    for _batch in loader:
        pass
    assert loader.stats()["engine"]["source"]["samples"] == 60
    loader.close()
    for _batch in loader:
        pass
    assert loader.stats()["engine"]["source"]["samples"] == 120


def test_an_older_iterator_raises_that_it_has_ended(data: belady.Dataset) -> None:
    loader = make(data, batch_size=16)
    older, newer = iter(loader), iter(loader)
    next(older)
    next(newer)
    with pytest.raises(belady.BeladyError, match="a newer one of the same loader was started"):
        next(older)
    assert sum(1 for _ in newer) == 3


def test_an_iterator_that_is_over_stays_over(data: belady.Dataset) -> None:
    iterator = iter(make(data, batch_size=60))
    next(iterator)
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


def test_a_closed_loader_can_be_iterated_again(data: belady.Dataset) -> None:
    with make(data, batch_size=16, shuffle=True) as loader:
        first = ids(loader)
    loader.close()
    assert sorted(map(sorted, ids(loader))) != sorted(map(sorted, first))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(belady.BeladyError, match="was closed, or has failed"):
        next(iterator)


def test_training_and_validation_share_an_engine(
    data: belady.Dataset, record_data: belady.Dataset
) -> None:
    engine = belady.Engine(cache="ram:300KB")
    train = make(data, batch_size=16, shuffle=True, engine=engine, cache_share=0.8)
    validate = make(record_data, batch_size=50, engine=engine)
    for _ in range(3):
        assert len(ids(train)) == 4
        assert [id_ for batch in ids(validate) for id_ in batch] == list(range(100))
    assert engine.stats()["delivered"]["samples"] == 3 * 160


def test_later_epochs_come_from_the_cache(data: belady.Dataset) -> None:
    loader = make(data, batch_size=16, shuffle=True, cache="ram:10MiB", epochs=4)
    for _ in range(4):
        ids(loader)
    source = loader.stats()["engine"]["source"]["bytes"]
    assert source == data.total_bytes


@pytest.fixture
def broken(tmp_path: Path) -> belady.Dataset:
    """A dataset of which three samples have vanished after it was listed."""
    root = make_photos(tmp_path / "broken")
    data = belady.open(root)
    for number in (3, 4, 30):
        os.remove(data.paths[number])
    return data


def test_an_error_names_an_unreadable_sample(broken: belady.Dataset) -> None:
    loader = make(broken, batch_size=10, retries=0)
    iterator = iter(loader)
    with pytest.raises(belady.SampleError) as raised:
        next(iterator)
    assert raised.value.path == broken.paths[3] and raised.value.sample == 3
    assert next(iterator).ids == list(range(10, 20))


def test_samples_that_cannot_be_read_are_skipped_or_replaced(broken: belady.Dataset) -> None:
    skipped = ids(make(broken, batch_size=10, on_error="skip", retries=0))
    assert [id_ for batch in skipped for id_ in batch] == [
        id_ for id_ in range(60) if id_ not in (3, 4, 30)
    ]
    replaced = ids(make(broken, batch_size=10, on_error="replace", retries=0))
    assert [len(batch) for batch in replaced] == [10] * 6
    assert replaced[0] == [0, 1, 2, 5, 5, 5, 6, 7, 8, 9]


def test_more_failures_than_allowed(broken: belady.Dataset) -> None:
    allowed = make(broken, batch_size=10, on_error="skip", max_failures=3, retries=0)
    assert len(ids(allowed)) == 6
    refused = make(broken, batch_size=10, on_error="skip", max_failures=2, retries=0)
    with pytest.raises(belady.BeladyError, match="3 samples failed, and max_failures is 2"):
        ids(refused)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("batch_size", [10, 7, 60])
def test_failures_are_counted_without_a_bound(
    broken: belady.Dataset, on_error: str, batch_size: int
) -> None:
    """Samples that could not be read were counted only where max_failures was given."""
    loader = make(broken, batch_size=batch_size, shuffle=True, on_error=on_error, retries=0)
    for epoch in range(1, 3):
        ids(loader)
        assert loader.stats()["failures"] == 3 * epoch


def test_a_dataset_that_vanishes_is_an_error_and_no_hang(tmp_path: Path) -> None:
    data = belady.open(make_photos(tmp_path / "vanishing"))
    shutil.rmtree(tmp_path / "vanishing")
    with pytest.raises(belady.SampleError):
        next(iter(make(data, batch_size=10, retries=0)))


def test_a_wait_that_is_too_long_is_an_error(photos: Path) -> None:
    data = belady.open(photos, throttle="1:1KB/s")
    loader = make(data, batch_size=30, timeout=0.3)
    with pytest.raises(TimeoutError, match="no batch came within 0.3 s; waiting for"):
        next(iter(loader))


def test_a_stall_is_logged(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = belady.open(photos, throttle="1:30KB/s")
    loader = make(data, batch_size=20, stall_after=0.1)
    with caplog.at_level(logging.WARNING, "belady"):
        next(iter(loader))
    assert "belady has been waiting for" in caplog.text


def test_figures_are_a_plain_dict_and_a_table(data: belady.Dataset) -> None:
    loader = make(data, batch_size=16)
    ids(loader)
    stats = loader.stats()
    assert (stats["batches"], stats["samples"], stats["failures"]) == (4, 60, 0)
    assert json.loads(json.dumps(stats)) == stats
    assert str(stats) == stats.table()
    assert "waited_seconds" in stats.table()
    assert all(isinstance(value, int | float) for value in stats.flat().values())


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="no samples in"):
        belady.records(tmp_path, 64)


def test_the_error_of_a_small_staging_buffer_names_the_size_it_needs(data: belady.Dataset) -> None:
    with pytest.raises(ValueError, match="two of the largest batches need") as refused:
        make(data, batch_size=60, staging=1000)
    needed = int(str(refused.value).split("(")[1].split(" ")[0])
    assert len(list(make(data, batch_size=60, staging=needed))) == 1
    with pytest.raises(ValueError, match="too small"):
        make(data, batch_size=60, staging=needed - 1)


def test_metrics_for_prometheus(data: belady.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELADY_METRICS_TOKEN", "secret")
    loader = make(data, batch_size=16, metrics="127.0.0.1:0")
    ids(loader)
    request = urllib.request.Request(
        f"http://{loader.engine.metrics_address}/metrics",
        headers={"Authorization": "Bearer secret"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert "belady_delivered_samples_total 60" in answer.read().decode()
    assert "belady_delivered_samples_total 60" in loader.engine.metrics_text()


def test_a_loader_is_not_pickled(data: belady.Dataset) -> None:
    with pytest.raises(TypeError, match="send the dataset"):
        pickle.dumps(make(data))


@pytest.mark.parametrize(
    "policy", ["belady", "nopfs", "staging", "naive", "monarch", "lru", "lobster"]
)
def test_every_policy_delivers(data: belady.Dataset, policy: str) -> None:
    loader = make(data, batch_size=16, shuffle=True, policy=policy, epochs=3)
    for _ in range(3):
        assert sorted(id_ for batch in ids(loader) for id_ in batch) == list(range(60))


@pytest.mark.parametrize(
    "policy",
    [
        "lobster,tau=5ms,threads=false",
        "nopfs,in_order=false,availability=known",
        belady.Policy("lobster", tau=0.005, eviction=False),
        belady.Policy("staging", loading_threads=2),
    ],
)
def test_a_policy_with_options_delivers(data: belady.Dataset, policy: str | belady.Policy) -> None:
    loader = make(data, batch_size=16, shuffle=True, policy=policy, epochs=2)
    for _ in range(2):
        assert sorted(id_ for batch in ids(loader) for id_ in batch) == list(range(60))


def test_attributes_of_torchs_loader_exist(data: belady.Dataset) -> None:
    generator = object()
    with pytest.raises((TypeError, ValueError), match="generator"):
        make(data, generator=generator)
    loader = make(data, batch_size=4, collate_fn=list, timeout=5, prefetch_factor=3)
    assert (loader.collate_fn, loader.timeout, loader.prefetch_factor) == (list, 5, 3)
    assert (loader.pin_memory, loader.generator) == (False, None)


def test_a_closed_engine_can_be_used_again(data: belady.Dataset) -> None:
    with belady.Engine(cache="ram:1MiB") as engine:
        assert len(list(make(data, batch_size=60, engine=engine, cache=None))) == 1
    assert len(list(make(data, batch_size=60, engine=engine, cache=None))) == 1
