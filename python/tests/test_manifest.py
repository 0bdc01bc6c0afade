"""Datasets whose files are named: lists and tables."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_photos
from support import ids, make

import belady


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos", each=4)


def test_a_list_of_files_is_a_dataset_in_its_order(root: Path) -> None:
    files = [root / "owl/003.bin", root / "cat/001.bin", root / "dog/002.bin"]
    data = belady.open(files, labels=["owl", "cat", "dog"])
    assert list(data.paths) == [str(file) for file in files]
    assert [sample for sample, _ in data] == [file.read_bytes() for file in files]
    assert data.classes == ["cat", "dog", "owl"] and data.targets == [2, 0, 1]
    assert data.path == str(root)
    with make(data, batch_size=2, shuffle=True, seed=0) as loader:
        assert sorted(sum(ids(loader), [])) == [0, 1, 2]


@pytest.mark.parametrize(
    "labels",
    [[5, 0, None], [5, 0, -1], np.array([5, 0, -1]), torch.tensor([5, 0, -1])],
    ids=["None", "-1", "numpy", "torch"],
)
def test_labels_may_be_numbers(root: Path, labels: Any) -> None:
    data = belady.open([root / f"cat/00{number}.bin" for number in range(3)], labels=labels)
    assert data.targets == [5, 0, -1] and data.classes == [] and data[2][1] is None


def test_a_list_without_labels_has_none(root: Path) -> None:
    assert belady.open([str(root / "cat/000.bin")]).targets == [-1]
    assert belady.open(iter([root / "cat/000.bin"])).targets == [-1]  # type: ignore[arg-type]


def test_files_may_lie_anywhere_and_come_twice(root: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.bin").write_bytes(b"beside")
    files = [root / "cat/000.bin", tmp_path / "beside.bin", root / "cat/000.bin"]
    data = belady.open(files)
    assert [sample for sample, _ in data] == [file.read_bytes() for file in files]
    assert data.path == str(tmp_path)


def test_the_fingerprint_tells_lists_apart(root: Path, tmp_path: Path) -> None:
    files = [root / f"cat/00{number}.bin" for number in range(3)]
    first = belady.open(files, labels=[0, 1, 2])
    assert belady.open(files, labels=[0, 1, 2]).fingerprint == first.fingerprint
    others = [
        belady.open(files),
        belady.open(files, labels=[0, 1, 1]),
        belady.open(files[::-1], labels=[0, 1, 2]),
        belady.open(files[:2], labels=[0, 1]),
    ]
    assert len({data.fingerprint for data in (first, *others)}) == 5
    files[0].write_bytes(b"another content")
    assert belady.open(files, labels=[0, 1, 2]).fingerprint != first.fingerprint


def test_a_state_of_another_list_is_refused(root: Path) -> None:
    files = [root / f"cat/00{number}.bin" for number in range(4)]
    with make(belady.open(files), batch_size=1, shuffle=True, seed=0) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with make(belady.open(files), batch_size=1, shuffle=True, seed=0) as again:
        again.load_state_dict(state)
        assert len(ids(again)) == 3
    with make(belady.open(files[::-1]), batch_size=1, shuffle=True, seed=0) as other:
        with pytest.raises(ValueError, match="the state is of another dataset"):
            other.load_state_dict(state)


def test_a_changed_file_of_a_list_is_not_served_from_a_warm_cache(
    root: Path, tmp_path: Path
) -> None:
    files = [root / f"cat/00{number}.bin" for number in range(4)]
    cache = f"{tmp_path / 'cache'}:10MiB"
    with make(belady.open(files), batch_size=4, cache=cache) as loader:
        list(loader)
    files[2].write_bytes(b"new")
    with make(belady.open(files), batch_size=4, cache=cache) as loader:
        assert [bytes(sample) for batch in loader for sample in batch.samples][2] == b"new"


def test_a_list_is_pickled_and_joined(root: Path) -> None:
    data = belady.open([root / "cat/000.bin", root / "owl/001.bin"], labels=["b", "a"])
    again = pickle.loads(pickle.dumps(data))
    assert again == data and again[1] == data[1] and again.classes == ["a", "b"]
    assert len(belady.join(data, belady.open(root))) == 14


WRONG_LISTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"path": []}, ValueError, "path is an empty list"),
    ({"path": ["cat/000.bin", 3]}, TypeError, r"path\[1\] has to be a path, not 3"),
    ({"labels": [1]}, ValueError, "labels has 1 entries for 2 files"),
    ({"labels": [1, "a"]}, TypeError, r"labels\[0\] is 1, and others are text"),
    ({"labels": [0.5, 1.0]}, TypeError, r"labels\[0\] has to be a whole number or text, not 0.5"),
    ({"labels": [0, -2]}, ValueError, r"labels\[1\] has to be at least 0, not -2"),
    ({"labels": "ab"}, TypeError, "labels has to be a list"),
    ({"format": "folder"}, ValueError, "path names files"),
    ({"extensions": "bin"}, ValueError, "path names files"),
    ({"path_column": "a"}, ValueError, "path_column and label_column are for a table"),
    (
        {"path": ["cat/000.bin", "cat/none.bin"]},
        FileNotFoundError,
        "none.bin, number 1 in the list",
    ),
    (
        {"path": ["cat/000.bin", "cat"]},
        OSError,
        "cat, number 1 in the list of files: it is not a regular",
    ),
]


@pytest.mark.parametrize(("given", "kind", "text"), WRONG_LISTS, ids=lambda it: str(it)[:40])
def test_a_wrong_list_is_an_error_of_one_sentence(
    root: Path,
    given: dict[str, Any],
    kind: type[Exception],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(root)
    with pytest.raises(kind, match=text):
        belady.open(**{"path": ["cat/000.bin", "cat/001.bin"], **given})


def test_labels_of_a_directory_go_to_the_loader(root: Path) -> None:
    with pytest.raises(ValueError, match="to its loader"):
        belady.open(root, labels=[1, 2])


# Tables


def table(root: Path, text: str, name: str = "train.csv") -> Path:
    path = root / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_names_files_relative_to_it(root: Path) -> None:
    rows = [
        "path,split,label",
        "owl/003.bin,a,owl",
        '"cat/001.bin",b,cat',
        f"{root}/dog/002.bin,a,dog",
    ]
    data = belady.open(table(root, "\n".join(rows) + "\n\n"))
    files = [root / "owl/003.bin", root / "cat/001.bin", root / "dog/002.bin"]
    assert list(data.paths) == [str(file) for file in files]
    assert [sample for sample, _ in data] == [file.read_bytes() for file in files]
    assert data.classes == ["cat", "dog", "owl"] and data.targets == [2, 0, 1]
    with make(data, batch_size=2, shuffle=True, seed=0) as loader:
        assert sorted(sum(ids(loader), [])) == [0, 1, 2]
    by_name = {"owl/003.bin": 7, "cat/001.bin": 8, "dog/002.bin": 9}
    with make(data, batch_size=3, labels=by_name) as loader:
        assert [list(batch.labels) for batch in loader] == [[7, 8, 9]]


def test_columns_are_named_or_found(root: Path) -> None:
    path = table(root, "id;\ty\timg\n1\t3\tcat/000.bin\n2\t\tdog/000.bin\n", "train.tsv")
    data = belady.open(path, path_column="img", label_column="y")
    assert data.targets == [3, -1] and data.classes == []
    assert len(belady.open(table(root, "FileName,Class\ncat/000.bin,x\n"))) == 1
    assert belady.open(table(root, "image\ncat/000.bin\n")).targets == [-1]


def test_a_table_may_begin_with_a_byte_order_mark(root: Path) -> None:
    path = root / "marked.csv"
    path.write_bytes("\ufeffpath,label\ncat/000.bin,é\n".encode())
    assert belady.open(path).classes == ["é"]


@pytest.mark.parametrize(
    ("labels", "targets", "classes"),
    [
        (["1", "0", "10"], [1, 0, 10], []),
        (["1", "-1", ""], [1, -1, -1], []),
        (["01", "1", "10"], [0, 1, 2], ["01", "1", "10"]),
        (["b", "", "a"], [1, -1, 0], ["a", "b"]),
    ],
)
def test_labels_of_a_table_are_numbers_or_classes(
    root: Path, labels: list[str], targets: list[int], classes: list[str]
) -> None:
    rows = [f"cat/00{number}.bin,{label}" for number, label in enumerate(labels)]
    data = belady.open(table(root, "\n".join(["path,label", *rows])))
    assert (data.targets, data.classes) == (targets, classes)


def test_a_changed_table_is_another_dataset(root: Path) -> None:
    path = table(root, "path,label\ncat/000.bin,a\ncat/001.bin,b\n")
    first = belady.open(path)
    pickled = pickle.dumps(first)
    assert pickle.loads(pickled)[1] == first[1]
    table(root, "path,label\ncat/001.bin,b\ncat/000.bin,a\n")
    assert belady.open(path).fingerprint != first.fingerprint
    with pytest.raises(belady.BeladyError, match="has changed since it was listed"):
        len(pickle.loads(pickled))


WRONG_TABLES = [
    ("", {}, "no column of paths; its columns are none"),
    ("a,b\n1,2\n", {}, "its columns are 'a', 'b': name one with path_column="),
    ("path,label\n", {}, "names no files"),
    ("path,label\ncat/000.bin\n", {}, "line 2, has 1 fields, and the header 2"),
    ("path\ncat/000.bin\n", {"label_column": "labl"}, "has no column 'labl'"),
    ("path\ns3://a/b\n", {}, "line 2: path s3://a/b is not a path"),
    ('path\n"cat\n', {}, "is not part of a table"),
]


@pytest.mark.parametrize(("text", "columns", "sentence"), WRONG_TABLES, ids=lambda it: str(it)[:30])
def test_a_wrong_table_is_an_error_of_one_sentence(
    root: Path, text: str, columns: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        belady.open(table(root, text), **columns)


def test_an_error_names_a_missing_file_of_a_table(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cat/none.bin, number 1 in the list of files"):
        belady.open(table(root, "path\ncat/000.bin\ncat/none.bin\n"))


def test_columns_are_those_of_tables(root: Path) -> None:
    with pytest.raises(ValueError, match="those of a .csv or .tsv file"):
        belady.open(root, path_column="path")


def test_labels_that_are_not_whole_numbers_are_refused(tmp_path: Path) -> None:
    """As text they came in the order 0.0, 1.0, 10.0, 11.0, 2.0: other labels, without a word."""
    lines = ["file,label"]
    for number in range(12):
        (tmp_path / f"{number:02}.bin").write_bytes(b"x")
        lines.append(f"{number:02}.bin,{number}.0")
    (tmp_path / "train.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="numbers that are not whole"):
        len(belady.open(tmp_path / "train.csv"))
