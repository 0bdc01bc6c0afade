"""Image files that tests share, made by Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def pixels(width: int, height: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Soft colours with edges and a little noise, as photographs have them."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    image = np.empty((height, width, 3))
    for channel in range(3):
        across, down, shift = draw.uniform(5, 60), draw.uniform(5, 60), draw.uniform(0, 6)
        image[..., channel] = 127 + 50 * (np.sin(x / across + shift) + np.cos(y / down))
    for _ in range(4):
        left, top = draw.integers(0, width), draw.integers(0, height)
        image[top : top + height // 3, left : left + width // 3] = draw.integers(0, 256, 3)
    image += draw.normal(0, 6, image.shape)
    return image.clip(0, 255).astype(np.uint8)


def encoded(
    width: int, height: int, seed: int = 0, *, kind: str = "JPEG", mode: str = "RGB", **options: Any
) -> bytes:
    """A file of that kind."""
    image = Image.fromarray(pixels(width, height, seed)).convert(mode)
    if kind == "JPEG":
        options = {"quality": 92, **options}
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def opened(data: bytes, mode: str = "RGB") -> Image.Image:
    """What Pillow makes of a file."""
    return Image.open(io.BytesIO(data)).convert(mode)


def make_photos(root: Path, each: int = 8) -> Path:
    """A folder a class, JPEGs of different sizes."""
    seed = 0
    for name in ("cat", "dog", "owl"):
        (root / name).mkdir(parents=True)
        for number in range(each):
            seed += 1
            width, height = 60 + 7 * (seed % 11), 50 + 5 * (seed % 13)
            (root / name / f"{number:03}.jpg").write_bytes(encoded(width, height, seed))
    return root
