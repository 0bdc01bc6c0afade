"""Writes a dataset as FFCV takes it: python beton.py FOLDER FILE.beton --size 110000"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy
from ffcv.fields import BytesField
from ffcv.writer import DatasetWriter
from raw import files


class Samples:
    """Arrays of bytes by their number."""

    def __init__(self, folder: Path, size: int) -> None:
        self.places, self.size = files(folder, size), size

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[numpy.ndarray]:
        path, offset = self.places[index]
        return (numpy.fromfile(path, numpy.uint8, self.size, offset=offset),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", type=int, required=True)
    args = parser.parse_args()
    if args.file.exists():
        return
    made = args.file.with_suffix(".part")
    DatasetWriter(str(made), {"data": BytesField()}, num_workers=1).from_indexed_dataset(
        Samples(args.folder, args.size)
    )
    made.rename(args.file)


if __name__ == "__main__":
    main()
