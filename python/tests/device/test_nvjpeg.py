"""nvJPEG called directly: what it is told, against a library that only takes notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belady.device.nvjpeg import File, Hardware, Image, NvjpegError, loaded_library

BAD_JPEG = 3


class Library:
    """Answers 0 to all, but what it is told to answer."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if name == "nvjpegDecodeBatchedSupported":
                arguments[2]._obj.value = 0
            return self.answers.get(name, 0)

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


def batch(count: int) -> tuple[list[File], list[Image]]:
    files = [File(1000 + at, 10 + at) for at in range(count)]
    return files, [Image(10_000 * (at + 1), 20, 30) for at in range(count)]


@pytest.mark.parametrize(("count", "given"), [(1, 8), (7, 8), (8, 8), (9, 16)])
def test_a_batch_is_filled_up_with_its_last_image(count: int, given: int) -> None:
    library: Any = Library()
    files, images = batch(count)
    Hardware(library, library, 8).decode(files, images, stream=77)
    (_, _, size, _, planes), = library.named("nvjpegDecodeBatchedInitialize")
    assert (size, planes) == (given, 3)
    (_, _, addresses, lengths, places, stream), = library.named("nvjpegDecodeBatched")
    assert list(addresses) == [1000 + min(at, count - 1) for at in range(given)]
    assert list(lengths) == [10 + min(at, count - 1) for at in range(given)]
    assert stream.value == 77
    for at in range(given):
        start = 10_000 * (min(at, count - 1) + 1)
        assert list(places)[8 * at : 8 * at + 8] == [start, start + 600, start + 1200, 0, 20, 20, 20, 0]


def test_buffers_are_made_once_for_each_size() -> None:
    library: Any = Library()
    hardware = Hardware(library, library, 4)
    for count in (4, 8, 3, 8, 4):
        hardware.decode(*batch(count), stream=1)
    assert [call[2] for call in library.named("nvjpegDecodeBatchedInitialize")] == [4, 8]
    hardware.close()
    assert len(library.named("nvjpegJpegStateDestroy")) == 2
    assert len(library.named("nvjpegDestroy")) == 1


def test_after_a_damaged_file_buffers_are_made_anew() -> None:
    library: Any = Library()
    hardware = Hardware(library, library, 4)
    library.answers["nvjpegDecodeBatched"] = BAD_JPEG
    with pytest.raises(NvjpegError, match="nvjpegDecodeBatched answered 3"):
        hardware.decode(*batch(4), stream=1)
    library.answers.clear()
    hardware.decode(*batch(4), stream=1)
    assert len(library.named("nvjpegJpegStateDestroy")) == 1
    assert len(library.named("nvjpegJpegStateCreate")) == 2


def test_files_whose_header_is_wrong_are_not_taken() -> None:
    library: Any = Library()
    hardware = Hardware(library, library, 4)
    assert hardware.takes(File(1, 2))
    library.answers["nvjpegJpegStreamParseHeader"] = BAD_JPEG
    assert not hardware.takes(File(1, 2))


def test_a_gpu_without_the_hardware_is_told() -> None:
    library: Any = Library()
    library.answers["nvjpegCreateEx"] = 7  # NVJPEG_STATUS_ARCH_MISMATCH
    with pytest.raises(NvjpegError):
        Hardware(library, library, 4)


def test_the_library_that_is_loaded_is_found(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    path = "/opt/v/torchvision.libs/libnvjpeg.36e11081.so.13"
    maps.write_text(f"7f00-7f10 r-xp 00000000 fe:00 12 /lib/libc.so.6\n7f20-7f30 r-xp 00000000 fe:00 13 {path}\n")
    assert loaded_library(maps) == path
    maps.write_text("7f00-7f10 r-xp 00000000 fe:00 12 /lib/libnvjpeg2k.so.0.txt\n")
    assert loaded_library(maps) is None
    assert loaded_library(tmp_path / "none") is None
