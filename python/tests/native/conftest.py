"""Datasets and engines for the tests of the native module."""

from pathlib import Path

import pytest

from belady import _native

from .helpers import Start, write_dataset


@pytest.fixture(autouse=True)
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings are kept beside the test's other files."""
    monkeypatch.setenv("BELADY_SNAPSHOTS", str(tmp_path / "snapshots"))


@pytest.fixture
def dataset(tmp_path: Path) -> _native.Dataset:
    """Samples of different sizes."""
    return _native.Dataset.open(str(write_dataset(tmp_path / "data")))


@pytest.fixture
def even(tmp_path: Path) -> _native.Dataset:
    """Samples of 1,000 bytes each."""
    return _native.Dataset.open(str(write_dataset(tmp_path / "even", size=1000)))


@pytest.fixture
def start() -> Start:
    """Starts a loader over a dataset in order, on a new engine with a RAM tier."""

    def start(
        dataset: _native.Dataset,
        *,
        batch: int = 8,
        order: str = "sequential",
        ram: int = 1 << 20,
        orders: _native.Orders | None = None,
        **options: object,
    ) -> _native.Loader:
        engine = _native.Engine(tiers=[(None, ram)] if ram else [], threads=2)
        if orders is None:
            orders = _native.Orders.distributed(samples=len(dataset), batch=batch, order=order)
        options.setdefault("staging", 4 << 20)
        options.setdefault("epochs", 1)
        return engine.start(dataset, orders, **options)

    return start
