"""Examples in docstrings and in the documentation run as they are written."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transforms.pictures import encoded, make_photos
from transforms.shards import write_tar

import belady

#: Those that have examples, or may have some without importing JAX or TensorFlow.
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(belady.__path__, "belady.")
    if name.rpartition(".")[2] not in ("_native", "__main__", "jax", "jax_mover", "tensorflow")
]
DOCUMENTS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["belady", *MODULES])
def test_examples_in_docstrings_run(name: str, photos: Path, numbers: Path) -> None:
    module = importlib.import_module(name)
    names = vars(module) | {"belady": belady, "photos": str(photos), "numbers": str(numbers)}
    runner = doctest.DocTestRunner()
    for test in found(module, names):
        runner.run(test)
    assert runner.failures == 0


def found(module: ModuleType, names: dict[str, Any]) -> list[doctest.DocTest]:
    """The examples of a module, and those of the classes that `belady` shows as its own."""
    finder = doctest.DocTestFinder()
    tests = finder.find(module, globs=names)
    if module is belady:
        for name in belady.__all__:
            shown = getattr(belady, name)
            if isinstance(shown, type):
                tests += finder.find(shown, name, module=False, globs=names)
    return tests


@pytest.mark.parametrize("name", ["python.md", "transforms.md"])
def test_examples_in_the_guides_run(
    name: str, photos: Path, numbers: Path, pictures: Path, shards: Path, tmp_path: Path
) -> None:
    import torch  # noqa: F401  (whose tensors the guides show)

    document = DOCUMENTS / name
    names = {
        "belady": belady,
        "photos": str(photos),
        "numbers": str(numbers),
        "pictures": str(pictures),
        "shards": str(shards),
        "local": str(tmp_path),
    }
    test = doctest.DocTestParser().get_doctest(document.read_text(), names, name, str(document), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert test.examples
    assert runner.failures == 0


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "pictures")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    (tmp_path / "shards").mkdir()
    sample = {"jpg": encoded(50, 40), "cls": b"1", "txt": b"a picture"}
    write_tar(tmp_path / "shards" / "0.tar", [sample] * 8)
    return tmp_path / "shards"
