"""Pictures that cost a decoder what photographs do: python photographs.py FOLDER 4000

Each is 500x375: smooth light, shapes with edges, texture of several grain sizes, and the noise of a
sensor; stored as JPEG of quality 90 (4:2:0), about 110 KB in the mean and from 70 to 140 KB. The
same number makes the same picture. They lie in ten folders, as classes do; a folder that is whole
is left as it is.

It needs numpy and Pillow, nothing else: benchmarks on other machines make their own.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy
from PIL import Image, ImageDraw

WIDTH, HEIGHT = 500, 375
QUALITY = 90
CLASSES = 10
# Texture: rows of grids from coarse to fine, and how strong what each adds is.
GRAINS = ((3, 70.0), (7, 34.0), (17, 22.0), (42, 15.0), (105, 11.0))
# Of the sensor; chosen so that files have 110 KB in the mean.
NOISE = (10.0, 54.0)


def picture(number: int) -> Image.Image:
    draw = numpy.random.default_rng(number)
    pixels = texture(draw) + shapes(draw)
    noise = draw.standard_normal((HEIGHT, WIDTH, 1), numpy.float32)
    pixels += draw.uniform(*NOISE) * noise
    return Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))


def texture(draw: numpy.random.Generator) -> numpy.ndarray:
    """Light and surfaces: each grid lies between the values of the coarser one and adds its own;
    mostly grey, as surfaces are."""
    planes = [numpy.full((2, 2), value, numpy.float32) for value in draw.uniform(95, 160, 3)]
    for rows, strength in GRAINS:
        size = (rows * WIDTH // HEIGHT, rows)
        planes = [stretched(plane, size) for plane in planes]
        added = strength * draw.uniform(0.5, 1.5)
        grey = draw.standard_normal(size[::-1], numpy.float32)
        for plane in planes:
            plane += added * (grey + 0.3 * draw.standard_normal(size[::-1], numpy.float32))
    return numpy.stack([stretched(plane, (WIDTH, HEIGHT)) for plane in planes], axis=-1)


def stretched(plane: numpy.ndarray, size: tuple[int, int]) -> numpy.ndarray:
    return numpy.array(Image.fromarray(plane).resize(size, Image.Resampling.BICUBIC))


def shapes(draw: numpy.random.Generator) -> numpy.ndarray:
    """Things with edges, brighter or darker than what is behind them."""
    canvas = Image.new("RGB", (WIDTH, HEIGHT), (128, 128, 128))
    pen = ImageDraw.Draw(canvas)
    for _ in range(int(draw.integers(4, 14))):
        colour = tuple(int(value) for value in draw.integers(70, 186, 3))
        x, y = draw.integers(0, WIDTH), draw.integers(0, HEIGHT)
        reach = draw.integers(15, 140, 2)
        box = [int(x - reach[0]), int(y - reach[1]), int(x + reach[0]), int(y + reach[1])]
        if draw.random() < 0.5:
            pen.ellipse(box, fill=colour)
        else:
            pen.rectangle(box, fill=colour)
    return numpy.asarray(canvas, numpy.float32) - 128


def encoded(number: int) -> bytes:
    file = io.BytesIO()
    picture(number).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def place(folder: Path, number: int) -> Path:
    return folder / f"{number % CLASSES}" / f"{number:06}.jpg"


def write(folder: Path, numbers: range) -> int:
    """Bytes of the files that were written."""
    total = 0
    for number in numbers:
        data = encoded(number)
        place(folder, number).write_bytes(data)
        total += len(data)
    return total


def make(folder: Path, count: int, processes: int | None = None) -> None:
    """Makes the folder, unless it is there: what is there is whole, since it gets its name last."""
    if folder.exists():
        return
    made = folder.with_name(folder.name + ".part")
    shutil.rmtree(made, ignore_errors=True)
    for name in range(CLASSES):
        (made / f"{name}").mkdir(parents=True)
    parts = [range(start, min(start + 100, count)) for start in range(0, count, 100)]
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        total = sum(pool.map(write, [made] * len(parts), parts))
    made.rename(folder)
    print(f"{count:,} pictures, {total / count:,.0f} bytes in the mean", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--processes", type=int, help="as many as there are processors")
    args = parser.parse_args()
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    make(args.folder, args.count, args.processes)


if __name__ == "__main__":
    main()
