"""Writes images as FFCV takes them: python store_ffcv.py FOLDER FILE.beton --mode jpg

It does not take JPEG files as they are: it decodes and, for `jpg`, encodes them anew, in the
quality they had.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy
from ffcv.fields import RGBImageField
from ffcv.writer import DatasetWriter
from PIL import Image
from task import files

QUALITY = 90


class Images:
    def __init__(self, folder: Path) -> None:
        self.paths = files(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[numpy.ndarray]:
        return (numpy.asarray(Image.open(self.paths[index]).convert("RGB")),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--mode", choices=["jpg", "raw"], required=True)
    args = parser.parse_args()
    if args.file.exists():
        return
    made = args.file.with_suffix(".part")
    field = RGBImageField(write_mode=args.mode, jpeg_quality=QUALITY)
    DatasetWriter(str(made), {"image": field}, num_workers=1).from_indexed_dataset(
        Images(args.folder)
    )
    made.rename(args.file)


if __name__ == "__main__":
    main()
