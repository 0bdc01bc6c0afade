"""Volumes of numbers, as CosmoFlow has them: int16 records, logarithms of counts, and for each
four numbers to be predicted, which are kept beside the dataset."""

from __future__ import annotations

import random
import tempfile
from array import array
from pathlib import Path

import belady
from belady import transforms as T

SHAPE = (4, 16, 16, 16)
NUMBERS = 4 * 16**3
VOLUMES = 24


def make() -> tuple[Path, list[list[float]]]:
    """Records in two files, and what belongs to each."""
    root, draw = Path(tempfile.mkdtemp(prefix="belady-cosmo-")), random.Random(0)
    for part in range(2):
        counts = array("h", (draw.randrange(400) for _ in range(NUMBERS * VOLUMES // 2)))
        (root / f"{part}.bin").write_bytes(counts.tobytes())
    return root, [[draw.random() for _ in range(4)] for _ in range(VOLUMES)]


def main() -> None:
    root, parameters = make()
    chain = [
        T.Raw("int16", SHAPE),
        T.ToDtype("float32"),
        T.Log(offset=1.0),
        T.ScaleShift(scale=1 / 6),
    ]
    loader = belady.DataLoader(
        belady.records(root, 2 * NUMBERS), batch_size=4, shuffle=True, cache="ram:8MiB",
        transform=chain, labels=[tuple(four) for four in parameters],
    )  # fmt: skip
    for volumes, targets in loader:
        assert volumes.shape == (4, *SHAPE) and len(targets) == 4
    print(f"{len(loader)} batches of {volumes.dtype} {volumes.shape}")
    loader.close()


if __name__ == "__main__":
    main()
