"""Datasets of real images."""

from __future__ import annotations

from pathlib import Path

import pytest

import belady

from .pictures import make_photos


@pytest.fixture(scope="session")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("jpegs") / "jpegs")


@pytest.fixture
def images(jpegs: Path) -> belady.Dataset:
    return belady.open(jpegs)
