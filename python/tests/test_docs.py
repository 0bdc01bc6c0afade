"""Examples in docstrings and in the documentation run as they are written."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import belady

MODULES = [
    name
    for _, name, _ in pkgutil.iter_modules(belady.__path__)
    if name not in ("_native", "__main__", "jax", "tensorflow")
]
DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.parametrize("name", ["", *MODULES])
def test_docstrings(name: str, photos: Path, numbers: Path) -> None:
    module = importlib.import_module(f"belady.{name}" if name else "belady")
    names = vars(module) | {"belady": belady, "photos": str(photos), "numbers": str(numbers)}
    failed, _ = doctest.testmod(module, extraglobs=names)
    assert failed == 0


def test_the_guide(photos: Path, numbers: Path, tmp_path: Path) -> None:
    text = DOCUMENT.read_text()
    names = {"belady": belady, "photos": str(photos), "numbers": str(numbers), "local": str(tmp_path)}
    test = doctest.DocTestParser().get_doctest(text, names, "python.md", str(DOCUMENT), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert test.examples
    assert runner.failures == 0
