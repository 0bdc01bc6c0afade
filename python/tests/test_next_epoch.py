"""What a loader reads and holds of an epoch that the program has not begun."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import ids, make

import belady

SIZE = 10_000
FILES = 200


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> belady.Dataset:
    """2 MB in files of equal size."""
    root = tmp_path_factory.mktemp("many")
    for number in range(FILES):
        (root / f"{number:03}.bin").write_bytes(bytes([number]) * SIZE)
    return belady.open(root)


def read_when_idle(loader: belady.DataLoader) -> int:
    """Bytes from the source once no more come. A read under way serves two epochs that want it."""
    while True:
        before = int(loader.stats()["bytes_from"]["source"])
        time.sleep(0.3)
        if loader.stats()["bytes_from"]["source"] == before:
            return before


@pytest.mark.parametrize("decode", [None, lambda sample, label: len(sample)])
@pytest.mark.parametrize("order", [{}, {"shuffle": True}, {"sampler": list(range(FILES))}])
def test_an_idle_loader_has_read_one_epoch_and_the_start_of_the_next(
    many: belady.Dataset, order: dict[str, Any], decode: Any
) -> None:
    """It read on and on: 452 MB of a dataset of 1.77 MB."""
    with make(
        many, batch_size=10, cache=[], staging="16MiB", next_epoch="300KB", decode=decode, **order
    ) as loader:
        for epoch in range(1, 4):
            ids(loader) if decode is None else [None for _ in loader]
            assert read_when_idle(loader) <= epoch * FILES * SIZE + 300_000


def test_by_default_it_is_a_twentieth_of_the_dataset(many: belady.Dataset) -> None:
    with make(many, batch_size=1, cache=[], staging="16MiB") as loader:
        ids(loader)
        assert FILES * SIZE <= read_when_idle(loader) <= FILES * SIZE * 105 // 100


def test_two_batches_of_the_next_epoch_are_staged_however_large(many: belady.Dataset) -> None:
    with make(many, batch_size=20, cache=[], staging="16MiB", next_epoch=0) as loader:
        ids(loader)
        assert read_when_idle(loader) <= FILES * SIZE + 2 * 20 * SIZE


def test_with_a_number_of_epochs_it_reads_ahead_as_far_as_space_allows(
    many: belady.Dataset,
) -> None:
    with make(many, batch_size=10, cache=[], staging="16MiB", epochs=3) as loader:
        ids(loader)
        assert FILES * SIZE * 105 // 100 < read_when_idle(loader) <= 3 * FILES * SIZE


def test_loaders_of_one_engine_read_what_they_give(many: belady.Dataset) -> None:
    engine = belady.Engine(cache=[])
    train = make(
        many, batch_size=10, shuffle=True, seed=1, engine=engine, next_epoch=0, staging="16MiB"
    )
    check = make(many, batch_size=20, engine=engine, next_epoch=0, staging="16MiB")
    for _ in range(2):
        ids(train)
        ids(check)
    read_when_idle(train)
    assert read_when_idle(check) <= 4 * FILES * SIZE + 2 * (10 + 20) * SIZE


@pytest.mark.parametrize("transformed", [False, True])
def test_the_error_of_a_sample_comes_with_its_batch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], transformed: bool
) -> None:
    """54 warnings for two failures: those of epochs that were read ahead in vain were logged too."""
    for number in range(20):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes(SIZE))
    data = belady.open(tmp_path)
    (tmp_path / "07.bin").unlink()
    transform = [belady.transforms.Raw("uint8", (SIZE,))] if transformed else None
    with make(
        data, batch_size=4, cache=[], on_error="skip", transform=transform, retries=0
    ) as loader:
        for _ in range(2):
            for _ in loader:
                pass
            read_when_idle(loader)
            assert capfd.readouterr().err.count("07.bin") == 1


PROGRAM = """
import json, sys, time
import belady

def resident():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024

root, more = sys.argv[1], json.loads(sys.argv[2])
data = belady.open(root)
before = resident()
train = belady.DataLoader(data, batch_size=20, shuffle=True, seed=1, staging="64MiB", **more)
check = belady.DataLoader(data, batch_size=50, staging="64MiB", **more)
for epoch in range(10):
    for loader in (train, check):
        for batch in loader:
            pass
        del batch
peak = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
def idle():
    return [loader.stats()["bytes_from"]["source"] for loader in (train, check)], resident()
now = idle()
while now != (now := idle()) or time.sleep(0.5) or now != idle():
    time.sleep(0.1)
print(json.dumps({"source": sum(now[0]), "peak": peak - before, "resident": now[1] - before}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 MB."""
    root = tmp_path_factory.mktemp("large")
    for number in range(400):
        (root / f"{number:03}.bin").write_bytes(bytes([number % 256]) * 100_000)
    return root


def training(root: Path, **more: Any) -> dict[str, int]:
    """What ten epochs with validation have read, held at most, and hold when they are over."""
    command = [sys.executable, "-c", PROGRAM, str(root), json.dumps(more)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    measured: dict[str, int] = json.loads(ended.stdout)
    return measured


@pytest.mark.parametrize("cache", ["ram:100MB", "ram:10MB", []])
def test_training_with_validation_takes_no_more_without_a_number_of_epochs(
    large: Path, cache: Any
) -> None:
    without = training(large, cache=cache)
    known = training(large, cache=cache, epochs=10)
    assert without["source"] <= 1.05 * known["source"]
    assert without["peak"] <= 1.05 * known["peak"]


def test_loaders_between_epochs_hold_little(large: Path) -> None:
    """Five validation loaders held 1.6 GB.

    Two batches of each are 14 MB; each had 40 MB at a time.
    """
    assert training(large, cache=[])["resident"] <= 32 << 20
