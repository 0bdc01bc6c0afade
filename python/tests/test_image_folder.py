"""Class folders as torchvision's `ImageFolder` reads them, and what else lies in directories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import make_photos
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

import belady


def write(root: Path, *names: str | bytes) -> Path:
    for name in names:
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"bytes of " + os.fsencode(name))
    return root


MIXED = [
    "top.jpg",
    "b/2.JPG",
    "b/10.jpeg",
    "b/notes.txt",
    "b/2.json",
    "b/deep/er/1.png",
    "b/deep/Thumbs.db",
    "b-side/x.webp",
    "B/x.TIFF",
    "B/jpg",
    "a/z.bmp",
    "a/z.gif",
    "a/z.pgm",
    "a/archive.jpg.bak",
]


def test_ids_and_classes_are_those_of_image_folder(tmp_path: Path) -> None:
    theirs = ImageFolder(str(write(tmp_path, *MIXED)))
    ours = belady.open(tmp_path)
    assert list(zip(ours.paths, ours.targets, strict=True)) == theirs.samples
    assert (ours.classes, ours.class_to_idx) == (theirs.classes, theirs.class_to_idx)
    assert ours.targets == theirs.targets


def test_the_extensions_of_images_are_those_of_torchvision(tmp_path: Path) -> None:
    names = [f"a/{number}{end}" for number, end in enumerate((*IMG_EXTENSIONS, ".gif", ".npy", ""))]
    ours = belady.open(write(tmp_path, *names))
    assert {os.path.splitext(path)[1] for path in ours.paths} == set(IMG_EXTENSIONS)


def warnings_of(opened: str) -> str:
    """Returns the warnings of a new process, where the rate limit has not begun."""
    code = f"import belady; data = belady.{opened}; print(len(data))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stderr


def test_files_that_are_left_out_are_logged_when_listed(tmp_path: Path) -> None:
    write(tmp_path, *MIXED)
    warning = warnings_of(f"open({str(tmp_path)!r}, snapshots=False)")
    assert "left out files whose names are not those of images" in warning
    assert "images=7 others=6" in warning and "B/jpg" in warning
    assert (
        warnings_of(f"open({str(tmp_path)!r}, snapshots=False, extensions={IMG_EXTENSIONS})") == ""
    )


def test_without_images_all_files_count(tmp_path: Path) -> None:
    write(tmp_path, "a/1.npy", "a/2.txt", "b/3")
    assert len(belady.open(tmp_path)) == 3


@pytest.mark.parametrize(
    ("extensions", "names"),
    [
        ("npy", ["1.npy", "4.NPY"]),
        (".npy", ["1.npy", "4.NPY"]),
        (("npy", "png"), ["1.npy", "3.png", "4.NPY"]),
        ([".tar.gz"], ["5.tar.gz"]),
        ((), ["1.npy", "2.txt", "3.png", "4.NPY", "5.tar.gz"]),
        (None, ["3.png"]),
    ],
)
def test_extensions_say_which_files_count(
    tmp_path: Path, extensions: Any, names: list[str]
) -> None:
    write(tmp_path, "a/1.npy", "a/2.txt", "a/3.png", "a/4.NPY", "a/5.tar.gz")
    for _ in range(2):  # listed, and from the snapshot
        data = belady.folder(tmp_path, extensions=extensions)
        assert [os.path.basename(path) for path in data.paths] == names


def test_extensions_hold_for_other_formats(tmp_path: Path) -> None:
    write(tmp_path, "1.npy", "2.txt", "x/3.npy")
    assert len(belady.flat(tmp_path)) == 3
    assert len(belady.flat(tmp_path, extensions="npy")) == 2


@pytest.mark.parametrize("wrong", [3, ["jpg", 3], "", [""], ["."]])
def test_extensions_that_are_none_are_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="extensions has to be"):
        belady.open(tmp_path, extensions=wrong)


@pytest.mark.parametrize("file", [None, "c/notes.txt", "c/.hidden.jpg"])
def test_a_class_without_a_valid_file_is_refused_as_image_folder_refuses_it(
    tmp_path: Path, file: str | None
) -> None:
    write(tmp_path, "a/1.jpg", "d/2.jpg")
    (tmp_path / "c").mkdir()
    if file is not None:
        write(tmp_path, file)
    if file != "c/.hidden.jpg":  # which ImageFolder counts, and belady does not
        with pytest.raises(FileNotFoundError, match="no valid file for the classes c"):
            ImageFolder(str(tmp_path))
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match=r"class folders without a file.*\(c\)"):
            belady.open(tmp_path)
        ours = belady.open(tmp_path, allow_empty=True)
        assert (ours.classes, ours.targets) == (["a", "c", "d"], [0, 2])
    if file != "c/.hidden.jpg":
        theirs = ImageFolder(str(tmp_path), allow_empty=True)
        assert ours.class_to_idx == theirs.class_to_idx
        assert list(zip(ours.paths, ours.targets, strict=True)) == theirs.samples


UNREAD = [
    ["0.parquet"],
    ["train/0.parquet", "train/1.parquet", "README.md"],
    ["data-00000-of-00001.arrow", "dataset_info.json", "state.json"],
    ["x.feather"],
    ["train.lance/data/0.bin"],
    ["train.zarr/c/0/0"],
    ["train.lmdb/data.mdb"],
    ["data.mdb", "lock.mdb"],
    ["train.beton"],
    ["train.zip"],
    ["0.tar.gz"],
]


@pytest.mark.parametrize("names", UNREAD, ids=lambda names: names[0])
def test_a_format_that_is_not_supported_is_refused_with_a_sentence(
    tmp_path: Path, names: list[str]
) -> None:
    write(tmp_path, *names)
    with pytest.raises(ValueError, match="which belady does not read: unpack or convert it"):
        belady.open(tmp_path)
    assert len(belady.flat(tmp_path)) == len(names)
    with pytest.raises(ValueError, match="which belady does not read"):
        belady.open(tmp_path / names[0].split("/")[0])


def test_metadata_beside_class_folders_is_no_sample(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", "b/2.jpg", "metadata.parquet")
    assert len(belady.open(tmp_path)) == 2


def test_names_that_are_no_utf_8_open_the_file(tmp_path: Path) -> None:
    names = [b"caf\xe9/\xff\xfe.jpg", b"caf\xe9/\xe9.jpg", "café/é.jpg".encode()]
    write(tmp_path, *names)
    ours, theirs = belady.open(tmp_path), ImageFolder(str(tmp_path))
    assert list(zip(ours.paths, ours.targets, strict=True)) == theirs.samples
    assert ours.class_to_idx == theirs.class_to_idx
    for sample, path in enumerate(ours.paths):
        with open(path, "rb") as file:
            assert file.read() == ours[sample][0]
    with belady.DataLoader(ours, batch_size=3, cache=[]) as loader:
        for batch in loader:
            assert (
                list(batch.paths) == [sample.path for sample in batch.samples] == list(ours.paths)
            )
    assert belady.open(os.fsencode(tmp_path) + b"/caf\xe9", format="flat").path.endswith(
        "caf\udce9"
    )


def test_an_error_names_a_file_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    write(tmp_path, b"a/\xff.jpg")
    data = belady.open(tmp_path)
    os.remove(data.paths[0])
    with pytest.raises(belady.SampleError) as raised:
        data[0]
    assert raised.value.path == data.paths[0]


def test_an_incomplete_last_record_is_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(range(100)))
    data = belady.records(tmp_path / "train.bin", 32)
    assert len(data) == 3 and data[2][0] == bytes(range(64, 96))
    path = str(tmp_path / "train.bin")
    for _ in range(2):  # also where the list comes from a snapshot
        warning = warnings_of(f"records({path!r}, 32)")
        assert "left out the ends of files" in warning and "bytes=4" in warning
    assert warnings_of(f"records({path!r}, 50)") == ""
    with pytest.raises(ValueError, match="its files are shorter than a record"):
        belady.records(tmp_path / "train.bin", 101)


def test_a_tilde_is_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_photos(tmp_path / "photos", each=2)
    monkeypatch.setenv("HOME", str(tmp_path))
    data = belady.open("~/photos", snapshots="~/snapshots")
    assert data.path == str(tmp_path / "photos")
    assert (tmp_path / "snapshots").is_dir() or not os.path.exists("~")
    assert len(belady.open([f"~/photos/{name}/000.bin" for name in ("cat", "dog")])) == 2
    with belady.DataLoader(data, batch_size=2, cache="~/cache:1MiB") as loader:
        list(loader)
    assert (tmp_path / "cache").is_dir() and not os.path.exists("~")
    assert f"directory {tmp_path}/cache does not exist and is created" in caplog.text


@pytest.mark.parametrize("url", ["s3://bucket/train", "gs://bucket", "https://host/train.csv"])
def test_a_url_is_not_taken_for_a_path(url: str) -> None:
    for given in (url, [url]):
        with pytest.raises(ValueError, match=f"{url} is not a path: belady reads files"):
            belady.open(given)
