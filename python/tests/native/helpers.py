"""What the tests of the native module share."""

from collections.abc import Callable
from pathlib import Path

from belady import _native

SAMPLES = 60
CLASSES = ("cat", "dog", "fox")


def contents(sample: int, size: int | None = None) -> bytes:
    """What sample `sample` of `dataset` holds."""
    length = 500 + 7 * sample if size is None else size
    return bytes((sample * 31 + at * 7) % 251 for at in range(length))


def write_dataset(root: Path, *, size: int | None = None, samples: int = SAMPLES) -> Path:
    """Class folders whose files, in order, hold `contents(0)`, `contents(1)`, ..."""
    each = samples // len(CLASSES)
    for sample in range(samples):
        folder = root / CLASSES[sample // each]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{sample:05}.bin").write_bytes(contents(sample, size))
    return root


#: Starts a loader over a dataset; see the fixture of this name.
Start = Callable[..., _native.Loader]


def batches(loader: _native.Loader) -> list[_native.Batch]:
    """All that comes."""
    found = []
    while (batch := loader.next(timeout=60)) is not None:
        found.append(batch)
    return found


def ids(loader: _native.Loader) -> list[list[int]]:
    """The samples of all batches that come."""
    found = []
    while (batch := loader.next(timeout=60)) is not None:
        found.append(batch.ids)
    return found
