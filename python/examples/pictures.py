"""Image files for the examples: PNGs of 48 x 40, reddish or bluish, written without any library."""

from __future__ import annotations

import random
import struct
import tempfile
import zlib
from pathlib import Path

WIDTH, HEIGHT = 48, 40
CLASSES = ("blue", "red")


def png(kind: str, draw: random.Random) -> bytes:
    """One image in colours of its kind."""
    rows = []
    for _ in range(HEIGHT):
        strong, weak = draw.randint(150, 255), draw.randint(0, 90)
        pixel = (strong, weak, weak) if kind == "red" else (weak, weak, strong)
        rows.append(b"\0" + bytes(pixel) * WIDTH)
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def make(each: int = 64) -> Path:
    """Writes the dataset, a folder for each class."""
    root = Path(tempfile.mkdtemp(prefix="belady-pictures-"))
    draw = random.Random(0)
    for kind in CLASSES:
        (root / kind).mkdir()
        for number in range(each):
            (root / kind / f"{number:04}.png").write_bytes(png(kind, draw))
    return root
