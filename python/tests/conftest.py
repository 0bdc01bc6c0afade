"""Small datasets that tests share."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from not_run import pytest_collectreport, pytest_runtest_logreport

import belady
from belady._log import RateLimit

__all__ = ["pytest_collectreport", "pytest_runtest_logreport"]

CLASSES = ("cat", "dog", "owl")


def make_photos(root: Path, each: int = 20) -> Path:
    """A folder a class, files of different sizes."""
    draw = random.Random(7)
    for name in CLASSES:
        (root / name).mkdir(parents=True)
        for number in range(each):
            (root / name / f"{number:03}.bin").write_bytes(draw.randbytes(draw.randint(100, 4000)))
    return root


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos") / "photos")


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records of 64 bytes; record i is full of the byte i."""
    root = tmp_path_factory.mktemp("numbers") / "numbers"
    root.mkdir()
    (root / "records.bin").write_bytes(b"".join(bytes([i]) * 64 for i in range(100)))
    return root


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hides the launcher, separates snapshots, and suppresses no warnings
    because of those of other tests."""
    log = logging.getLogger("belady")
    monkeypatch.setattr(log, "filters", [RateLimit(log)])
    belady._native.finish_log()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BELADY_SNAPSHOTS", str(tmp_path_factory.getbasetemp() / "snapshots"))


@pytest.fixture
def data(photos: Path) -> belady.Dataset:
    return belady.open(photos)


@pytest.fixture
def record_data(numbers: Path) -> belady.Dataset:
    return belady.records(numbers, 64)
