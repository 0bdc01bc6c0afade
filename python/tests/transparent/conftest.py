"""Datasets, made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from transparent import made


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The dataset of a kind; tests do not change it."""
    root = tmp_path_factory.mktemp("datasets")

    def of(kind: str) -> Path:
        if not (root / kind).exists():
            (root / kind).mkdir()
            made.KINDS[kind](root / kind)
        return root / kind

    return of


@pytest.fixture
def tree(dataset: Callable[[str], Path]) -> Path:
    """Files and links of all kinds; tests do not change them."""
    return dataset("tree")


@pytest.fixture
def own(dataset: Callable[[str], Path], tmp_path: Path) -> Path:
    """The same, for a test that changes it."""
    shutil.copytree(dataset("tree"), tmp_path / "own", symlinks=True)
    return tmp_path / "own"


@pytest.fixture
def level(tmp_path: Path) -> Path:
    """Where copies may lie."""
    (tmp_path / "level").mkdir()
    return tmp_path / "level"
