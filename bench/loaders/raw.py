"""Bytes of samples into a Python loop, by one loader: what it takes, as JSON.

    python raw.py belady-lend FOLDER --size 110000 --batch 64 --cache ram:2GB
    python raw.py ffcv-1 FILE.beton --size 110000 --batch 64 --hash

The loop looks at every sample: at its length, or with `--hash` at each of its bytes (XXH3, 64 bit).
One epoch warms everything up and is not counted; then come whole epochs for two seconds. CPU is
that of all processes.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tree import cpu_seconds

SEED = 0


def files(folder: Path, size: int) -> list[tuple[str, int]]:
    """Where samples lie: file and offset. A file is a sample, or records of `size`."""
    found = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            found += files(Path(entry.path), size)
        else:
            found += [(entry.path, offset) for offset in range(0, entry.stat().st_size, size)]
    return found


class Loader(ABC):
    """Epoch after epoch of batches, each a sequence of buffers."""

    @abstractmethod
    def __init__(self, args: argparse.Namespace) -> None: ...

    @abstractmethod
    def epoch(self) -> Iterator[Iterable[Any]]: ...

    def close(self) -> None:
        """Ends what it started."""


class Belady(Loader):
    """From the RAM tier, which holds all: lent, copied into slots, or as tensors of torch."""

    def __init__(self, args: argparse.Namespace) -> None:
        import belady

        how = args.loader.removeprefix("belady-")
        collate, writable = None, how != "lend"
        if how == "torch":
            import belady.torch

            collate = belady.torch.stack
        data = belady.open(args.data, format=args.format)
        self.tensors = collate is not None
        self.loader = belady.DataLoader(
            data, batch_size=args.batch, shuffle=True, seed=SEED, cache=[args.cache] if args.cache else [],
            collate_fn=collate, writable=writable, staging=args.staging,
        )  # fmt: skip

    def epoch(self) -> Iterator[Iterable[Any]]:
        if self.tensors:
            # A row of a matrix, as numpy sees it.
            return (tensors.numpy() for tensors, _ in self.loader)
        return (samples for samples, _ in self.loader)

    def close(self) -> None:
        self.loader.close()


class Torch(Loader):
    """torch's DataLoader over files in the page cache; workers live across epochs."""

    def __init__(self, args: argparse.Namespace) -> None:
        import numpy
        import torch

        class Samples(torch.utils.data.Dataset[Any]):
            def __init__(self) -> None:
                self.places = files(Path(args.data), args.size)

            def __len__(self) -> int:
                return len(self.places)

            def __getitem__(self, index: int) -> Any:
                path, offset = self.places[index]
                if maps:
                    return torch.from_numpy(maps[path][offset : offset + args.size].copy())
                return torch.from_numpy(numpy.fromfile(path, numpy.uint8))

        # Records are read from mapped files, which is what their users do.
        kept = Path(args.data).iterdir() if args.format.startswith("records") else ()
        maps = {str(path): numpy.memmap(path, numpy.uint8, "r") for path in kept}
        workers = int(args.loader.removeprefix("torch-"))
        torch.set_num_threads(1)
        self.loader = torch.utils.data.DataLoader(
            Samples(), batch_size=args.batch, shuffle=True, num_workers=workers,
            generator=torch.Generator().manual_seed(SEED), persistent_workers=workers > 0,
        )  # fmt: skip

    def epoch(self) -> Iterator[Iterable[Any]]:
        return (batch.numpy() for batch in self.loader)


class Ffcv(Loader):
    """FFCV, a field of bytes, its file in the page cache."""

    def __init__(self, args: argparse.Namespace) -> None:
        from ffcv.fields.decoders import BytesDecoder
        from ffcv.loader import Loader as FfcvLoader, OrderOption

        self.loader = FfcvLoader(
            str(args.data), batch_size=args.batch, num_workers=int(args.loader.removeprefix("ffcv-")),
            os_cache=True, order=OrderOption.RANDOM, seed=SEED, drop_last=False,
            pipelines={"data": [BytesDecoder()]},
        )  # fmt: skip

    def epoch(self) -> Iterator[Iterable[Any]]:
        return (batch[0] for batch in self.loader)


class Memory(Loader):
    """No loader: all samples in one block of memory, of which slices are kept in a list. What the
    loop and the machine allow."""

    def __init__(self, args: argparse.Namespace) -> None:
        places = files(args.data, args.size)
        block = memoryview(mmap.mmap(-1, len(places) * args.size))
        self.samples = [block[at : at + args.size] for at in range(0, len(block), args.size)]
        for sample, (path, offset) in zip(self.samples, places, strict=True):
            with open(path, "rb") as file:
                file.seek(offset)
                file.readinto(sample)
        self.batch, self.draw = args.batch, random.Random(SEED)

    def epoch(self) -> Iterator[Iterable[Any]]:
        self.draw.shuffle(self.samples)
        starts = range(0, len(self.samples), self.batch)
        return (self.samples[start : start + self.batch] for start in starts)


LOADERS = {
    "memory": Memory,
    "belady-lend": Belady, "belady-slots": Belady, "belady-torch": Belady,
    "torch-0": Torch, "torch-2": Torch, "ffcv-1": Ffcv, "ffcv-2": Ffcv,
}  # fmt: skip


def look(batches: Iterator[Iterable[Any]]) -> tuple[int, int]:
    """Samples and bytes, by their lengths."""
    samples = total = 0
    for batch in batches:
        for sample in batch:
            total += len(sample)
            samples += 1
    return samples, total


def digest(batches: Iterator[Iterable[Any]]) -> tuple[int, int]:
    """Samples, and the sum of what their bytes hash to."""
    from xxhash import xxh3_64_intdigest

    samples = total = 0
    for batch in batches:
        for sample in batch:
            total += xxh3_64_intdigest(sample)
            samples += 1
    return samples, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("data", type=Path)
    parser.add_argument("--size", type=int, required=True, help="bytes of a sample")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument(
        "--seconds", type=float, default=2, help="whole epochs for at least so long"
    )
    parser.add_argument("--format", default="flat", help="as belady takes it")
    parser.add_argument("--cache", help="belady's, such as ram:2GB; none without it")
    parser.add_argument("--staging", default="256MiB", help="belady's")
    parser.add_argument("--hash", action="store_true", help="hash every byte")
    args = parser.parse_args()
    loader = LOADERS[args.loader](args)
    consume = digest if args.hash else look
    consume(loader.epoch())
    cpu, began, seconds, found = cpu_seconds(), time.perf_counter(), 0.0, []
    while seconds < args.seconds or not found:
        found.append(consume(loader.epoch()))
        seconds = time.perf_counter() - began
    cpu = cpu_seconds() - cpu
    loader.close()
    samples, sums = sum(one for one, _ in found), {total for _, total in found}
    if len(sums) != 1:
        raise SystemExit(f"epochs of {args.loader} do not have the same bytes: {sums}")
    # A hash of all bytes, or their number: the same with every loader.
    print(
        json.dumps({"samples": samples, "seconds": seconds, "cpu_seconds": cpu, "sum": sums.pop()})
    )


if __name__ == "__main__":
    main()
