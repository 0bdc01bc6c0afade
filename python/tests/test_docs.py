"""Examples in docstrings and in the documentation run as they are written."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import belady
from transforms.pictures import encoded, make_photos
from transforms.shards import write_tar

MODULES = [
    name
    for _, name, _ in pkgutil.iter_modules(belady.__path__)
    if name not in ("_native", "__main__", "jax", "tensorflow")
] + ["device.tail"]
DOCUMENTS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["", *MODULES])
def test_docstrings(name: str, photos: Path, numbers: Path) -> None:
    module = importlib.import_module(f"belady.{name}" if name else "belady")
    names = vars(module) | {"belady": belady, "photos": str(photos), "numbers": str(numbers)}
    failed, _ = doctest.testmod(module, extraglobs=names)
    assert failed == 0


@pytest.mark.parametrize("name", ["python.md", "transforms.md"])
def test_the_guides(
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
