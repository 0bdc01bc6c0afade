"""Images into a training loop, by one loader: what it takes, as JSON.

    python bench/loaders/images belady FOLDER --threads 2 --cache ram:600MB
    python bench/loaders/images ffcv-raw FILE.beton --threads 1

One epoch warms everything up and is not counted; in it, the loop looks at what it gets. Then come
whole epochs for ten seconds. CPU is that of all processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import numpy
from task import BATCH, SIZE, Loader

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tree import cpu_seconds, held

LOADERS = (
    "belady", "dali-fused", "dali-full", "ffcv-jpg", "ffcv-jpg-chw", "ffcv-raw", "ffcv-raw-chw",
    "torch-pil", "torch-v2", "tf-data",
)  # fmt: skip


def make(args: argparse.Namespace) -> Loader:
    """Imports no more than the one loader needs: memory counts."""
    match args.loader.split("-")[0]:
        case "belady":
            from by_belady import Belady as Chosen
        case "dali":
            from by_dali import Dali as Chosen
        case "ffcv":
            from by_ffcv import Ffcv as Chosen
        case "torch":
            from by_torch import Torch as Chosen
        case _:
            from by_tensorflow import Tensorflow as Chosen
    return Chosen(args)


class Look:
    """What the images of an epoch are like: means and deviations of each channel."""

    def __init__(self) -> None:
        self.images, self.numbers = 0, 0
        self.sums, self.squares = numpy.zeros(3), numpy.zeros(3)

    def at(self, batch: Any) -> None:
        values = numpy.asarray(batch)
        if values.dtype != numpy.float32 or values.shape[1:] != (3, SIZE, SIZE):
            raise SystemExit(
                f"a batch is {values.dtype} of {values.shape}, not float32 of (n, 3, {SIZE}, {SIZE})"
            )
        few = values[:, :, 3::8, 3::8].astype(numpy.float64)
        self.images += len(values)
        self.numbers += few.size // 3
        self.sums += few.sum(axis=(0, 2, 3))
        self.squares += (few**2).sum(axis=(0, 2, 3))

    def result(self) -> dict[str, list[float]]:
        mean = self.sums / self.numbers
        deviation = numpy.sqrt(self.squares / self.numbers - mean**2)
        return {"mean": mean.round(4).tolist(), "deviation": deviation.round(4).tolist()}


def measure(loader: Loader, seconds: float, epochs: int, leak: int) -> dict[str, Any]:
    """Whole epochs, until both are over; memory is looked at between them."""
    cpu, began, spent = cpu_seconds(), time.perf_counter(), 0.0
    # What was seen, staging buffer and all else in turns; objects would count as growth themselves.
    images, memory, leaked = 0, array("q", held()), []
    while spent < seconds or len(memory) // 2 <= epochs:
        count = sum(len(batch) for batch in loader.epoch())
        leaked.append(b"x" * (leak * count))
        images += count
        spent = time.perf_counter() - began
        memory.extend(held())
    cpu = cpu_seconds() - cpu
    staging, other = memory[::2].tolist(), memory[1::2].tolist()
    return {
        "images": images,
        "seconds": spent,
        "cpu_seconds": cpu,
        "staging": staging,
        "other": other,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("data", type=Path)
    parser.add_argument("--threads", type=int, required=True, help="or worker processes")
    parser.add_argument(
        "--seconds", type=float, default=10, help="whole epochs for at least so long"
    )
    parser.add_argument("--epochs", type=int, default=1, help="and at least so many")
    parser.add_argument(
        "--leak",
        type=int,
        default=0,
        help="bytes an image that are never given back, to see whether they show",
    )
    parser.add_argument("--cache", help="belady's, such as ram:600MB; none without it")
    parser.add_argument("--staging", default="128MiB", help="belady's")
    args = parser.parse_args()
    began = time.perf_counter()
    loader = make(args)
    seen, first = Look(), 0.0
    for batch in loader.epoch():
        first = first or time.perf_counter() - began
        seen.at(batch)
    found = measure(loader, args.seconds, args.epochs, args.leak)
    loader.close()
    rounds = found["images"] / seen.images
    if rounds != int(rounds):
        raise SystemExit(f"epochs of {args.loader} do not have the same number of images: {BATCH=}")
    print(json.dumps({"first_batch_seconds": first, **seen.result(), **found}))


if __name__ == "__main__":
    main()
