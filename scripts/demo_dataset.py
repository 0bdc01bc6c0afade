#!/usr/bin/env python3
"""Makes the dataset that `make demo` reads: 4,000 files of about 110 KB in ten class folders.

    python3 scripts/demo_dataset.py out/demo-data
"""

import pathlib
import random
import sys

SAMPLES, CLASSES = 4000, 10
MEAN, STDDEV, LEAST = 110_000, 30_000, 1_000


def main():
    if len(sys.argv) != 2:
        sys.exit("Usage: demo_dataset.py FOLDER")
    folder = pathlib.Path(sys.argv[1])
    draw = random.Random(0)
    for sample in range(SAMPLES):
        path = folder / f"class{sample % CLASSES}" / f"{sample:04}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(max(LEAST, round(draw.gauss(MEAN, STDDEV)))))


if __name__ == "__main__":
    main()
