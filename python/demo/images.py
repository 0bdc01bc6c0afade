"""The demo's dataset: small PNG pictures of stripes in noise, in a folder for each class.

A class is a direction of stripes, so a small network can learn it, but not at once. The noise
also keeps files from compressing, as photographs do. Writing and reading PNG takes a few lines,
since all pictures are 8-bit RGB without filters; any viewer shows them.

    python images.py FOLDER 3000
"""

from __future__ import annotations

import shutil
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy

SIDE = 96
CLASSES = 8
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def make(folder: Path, count: int) -> None:
    """Writes `count` pictures, the same ones for the same count, unless they are there."""
    made = folder.with_suffix(".made")
    if made.exists() and made.read_text() == str(count):
        return
    made.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    for kind in range(CLASSES):
        (folder / f"direction{kind}").mkdir(parents=True, exist_ok=True)
    draw = numpy.random.default_rng(0)
    for number in range(count):
        kind = number % CLASSES
        path = folder / f"direction{kind}" / f"{number:05}.png"
        path.write_bytes(encode(picture(kind, draw)))
    # Written last, beside the folder: half a dataset is made anew.
    made.write_text(str(count))


def picture(kind: int, draw: numpy.random.Generator) -> numpy.ndarray:
    """Stripes in the direction of a class, of a random width, place and colour, in noise."""
    angle = numpy.pi * kind / CLASSES
    rows, columns = numpy.mgrid[0:SIDE, 0:SIDE]
    along = rows * numpy.sin(angle) + columns * numpy.cos(angle)
    stripes = numpy.sin(along * draw.uniform(0.3, 0.9) + draw.uniform(0, 2 * numpy.pi))
    colour = draw.uniform(10, 30, 3)
    noise = draw.normal(128, 45, (SIDE, SIDE, 3))
    return numpy.clip(noise + stripes[:, :, None] * colour, 0, 255).astype(numpy.uint8)


def listing(folder: Path) -> list[tuple[Path, int]]:
    """Every file with the number of its class, in the order of torchvision's ImageFolder."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [(path, label) for label, each in enumerate(classes) for path in sorted(each.iterdir())]


def encode(pixels: numpy.ndarray) -> bytes:
    """A PNG file."""
    height, width, _ = pixels.shape
    # Each row begins with the number of its filter: none.
    rows = numpy.zeros((height, 1 + 3 * width), numpy.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b"")]
    return _SIGNATURE + b"".join(_chunk(name, data) for name, data in parts)


def decode(file: bytes | memoryview) -> numpy.ndarray:
    """The pixels of a PNG file that `encode` made."""
    if bytes(file[: len(_SIGNATURE)]) != _SIGNATURE:
        raise ValueError("this is no PNG file")
    chunks = dict(_chunks(file))
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = numpy.frombuffer(zlib.decompress(chunks[b"IDAT"]), numpy.uint8)
    return rows.reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _chunks(file: bytes | memoryview) -> Iterator[tuple[bytes, bytes | memoryview]]:
    at = len(_SIGNATURE)
    while at < len(file):
        (length,) = struct.unpack(">I", file[at : at + 4])
        yield bytes(file[at + 4 : at + 8]), file[at + 8 : at + 8 + length]
        at += 12 + length


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        sys.exit("Usage: images.py FOLDER COUNT")
    make(Path(sys.argv[1]), int(sys.argv[2]))
