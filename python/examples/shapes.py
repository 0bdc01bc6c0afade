"""A tiny dataset for the examples: grey images of 16 x 16, bright at the top or at the bottom."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

SIDE = 16
CLASSES = ("bottom", "top")


def image(kind: str, draw: random.Random) -> bytes:
    """One image as raw bytes, a row after another."""
    rows = []
    for row in range(SIDE):
        bright = (row < SIDE // 2) == (kind == "top")
        low, high = (120, 255) if bright else (0, 135)
        rows.append(bytes(draw.randint(low, high) for _ in range(SIDE)))
    return b"".join(rows)


def make(root: Path | None = None, each: int = 96) -> Path:
    """Writes the dataset, a folder for each class."""
    root = root or Path(tempfile.mkdtemp(prefix="belady-shapes-"))
    draw = random.Random(0)
    for kind in CLASSES:
        (root / kind).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            (root / kind / f"{number:04}.raw").write_bytes(image(kind, draw))
    return root
