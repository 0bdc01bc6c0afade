"""Damaged files: raised, skipped or replaced, and always named."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import make

import belady
from belady import transforms as T

from .pictures import encoded, make_photos

CHAIN = [T.Decode(), T.Resize((16, 16)), T.ToTensor()]


def same(image: Any) -> Any:
    return image


CHAINS = {"native": CHAIN, "functions": [T.Decode(), same, *CHAIN[1:]]}
chains = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)


def png_of(width: int, height: int) -> bytes:
    """A PNG with that size in its header, and no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:2] + bytes(x ^ 0x5A for x in data[2:middle]) + data[middle:]


GOOD = encoded(80, 60, 99)
BAD = {
    "truncated jpeg": GOOD[: len(GOOD) // 2],
    "truncated png": encoded(80, 60, 99, kind="PNG")[:2000],
    "truncated webp": encoded(80, 60, 99, kind="WEBP")[:500],
    "corrupt": damaged(GOOD),
    "empty": b"",
    "text": b"<html>404 Not Found</html>",
    "gigantic png": png_of(60_000, 60_000),
    "gigantic beyond all": png_of(2**31 - 1, 2**31 - 1),
    "zero width": png_of(0, 10),
}


@pytest.fixture(params=BAD)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> belady.Dataset:
    """24 images of which number 5 is broken."""
    root = make_photos(tmp_path / "photos")
    (root / "cat" / "005.jpg").write_bytes(BAD[request.param])
    return belady.open(root)


@chains
def test_it_is_raised_and_named(broken: belady.Dataset, chain: Any) -> None:
    with make(broken, batch_size=4, transform=chain) as loader:
        iterator = iter(loader)
        assert next(iterator).ids == [0, 1, 2, 3]
        with pytest.raises(
            belady.DecodeError, match=r"decode failed on .*cat/005\.jpg: "
        ) as raised:
            next(iterator)
        assert raised.value.path.endswith("cat/005.jpg") and raised.value.sample == 5
        assert "Traceback" not in str(raised.value), "it is not the user's code"
        assert [batch.ids for batch in iterator] == [list(range(n, n + 4)) for n in (8, 12, 16, 20)]


@chains
def test_it_is_left_out(broken: belady.Dataset, chain: Any) -> None:
    with make(broken, batch_size=4, transform=chain, on_error="skip") as loader:
        for _ in range(2):
            batches = list(loader)
            assert [batch.ids for batch in batches][:2] == [[0, 1, 2, 3], [4, 6, 7]]
            assert [len(batch[0]) for batch in batches] == [4, 3, 4, 4, 4, 4]
            for batch in batches:
                assert batch[1].tolist() == [broken.targets[id_] for id_ in batch.ids]
                for id_, tensor in zip(batch.ids, batch[0], strict=True):
                    assert torch.equal(tensor, T.Compose(CHAIN)(broken[id_][0]))
        assert loader.stats()["failures"] == 2


@chains
def test_it_is_replaced_by_another_sample(broken: belady.Dataset, chain: Any) -> None:
    with make(broken, batch_size=4, transform=chain, on_error="replace") as loader:
        batches = list(loader)
        assert batches[1].ids == [4, 6, 6, 7]
        assert torch.equal(batches[1][0][1], batches[1][0][2])


@chains
def test_more_than_so_many_are_an_error(broken: belady.Dataset, chain: Any) -> None:
    with make(broken, batch_size=4, transform=chain, on_error="skip", max_failures=0) as loader:
        with pytest.raises(
            belady.BeladyError, match=r"1 samples failed, and max_failures is 0.*005\.jpg"
        ):
            list(loader)


def test_gigantic_dimensions_say_which_argument_allows_them(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(png_of(60_000, 60_000))
    with make(belady.flat(tmp_path), transform=CHAIN) as loader:
        with pytest.raises(belady.DecodeError, match="max_pixels"):
            next(iter(loader))
    (tmp_path / "bomb.png").write_bytes(encoded(100, 100, kind="PNG"))
    small = [T.Decode(max_pixels=9_999), *CHAIN[1:]]
    with make(belady.flat(tmp_path), transform=small) as loader:
        with pytest.raises(belady.DecodeError, match="max_pixels"):
            next(iter(loader))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF"])
def test_content_counts_and_not_the_name(tmp_path: Path, kind: str) -> None:
    (tmp_path / "renamed.jpg").write_bytes(encoded(40, 30, kind=kind))
    with make(belady.flat(tmp_path), transform=[T.Decode()]) as loader:
        [image], _ = next(iter(loader))
    assert image.shape == (30, 40, 3)


def test_a_wrong_number_of_channels(tmp_path: Path) -> None:
    """Two of four have an alpha channel, which `UNCHANGED` keeps; `Normalize` has three means."""
    for number in range(4):
        mode = "RGBA" if number % 2 else "RGB"
        (tmp_path / f"{number}.png").write_bytes(encoded(20, 20, number, kind="PNG", mode=mode))
    chain = [T.Decode("UNCHANGED"), T.ToTensor(), T.Normalize((0.5,) * 3, (0.5,) * 3)]
    data = belady.flat(tmp_path)
    with make(data, batch_size=4, transform=chain) as loader:
        with pytest.raises(belady.DecodeError, match=r"1\.png"):
            next(iter(loader))
    with make(data, batch_size=4, transform=chain, on_error="skip") as loader:
        assert next(iter(loader)).ids == [0, 2]
    with make(data, batch_size=4, transform=[T.Decode(), *chain[1:]]) as loader:
        assert next(iter(loader))[0][0].shape == (3, 20, 20), "RGB drops it"


def test_a_batch_of_damaged_files_alone_is_skipped(tmp_path: Path) -> None:
    root = make_photos(tmp_path / "photos", each=4)
    for number in range(4):
        (root / "dog" / f"{number:03}.jpg").write_bytes(b"")
    data = belady.open(root)
    with make(data, batch_size=4, transform=CHAIN, on_error="skip") as loader:
        assert [batch.ids for batch in loader] == [[0, 1, 2, 3], [8, 9, 10, 11]]
        assert loader.stats()["failures"] == 4


def test_numbers_that_are_too_few(tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(bytes(64))
    (tmp_path / "1.bin").write_bytes(bytes(60))
    with make(belady.flat(tmp_path), transform=[T.Raw("float32", (4, 4))]) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(belady.DecodeError, match=r"1\.bin"):
            next(iterator)


def test_broken_numpy_files(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.arange(12.0))
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': (0, {2**60}, {2**60})}}".encode()
    huge = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    broken = stream.getvalue()[:-8], b"\x93NUMPY\x01\x00\xff\xff{", b"", huge
    for number, data in enumerate(broken):
        (tmp_path / f"{number}.npy").write_bytes(data)
    with make(belady.flat(tmp_path), transform=[T.Numpy()]) as loader:
        iterator = iter(loader)
        for number in range(len(broken)):
            with pytest.raises(belady.DecodeError, match=rf"{number}\.npy"):
                next(iterator)


def test_images_decode_as_with_pillow(tmp_path: Path) -> None:
    """A guard of this file's own: the good picture is good."""
    assert Image.open(io.BytesIO(GOOD)).size == (80, 60)
