"""Arrays: NumPy and HDF5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transparent.inside import files, program


@program("np.load", "arrays", modules=["numpy"])
def load(data: Path, scratch: Path) -> Iterator[bytes]:
    import numpy as np

    yield from (np.load(path).tobytes() for path in sorted(data.glob("*.npy")))


@program("np.load(mmap_mode)", "arrays", modules=["numpy"])
def load_mapped(data: Path, scratch: Path) -> Iterator[bytes]:
    import numpy as np

    yield from (np.load(path, mmap_mode="r").tobytes() for path in sorted(data.glob("*.npy")))


@program("np.load of .npz", "zipped", modules=["numpy"])
def load_zipped(data: Path, scratch: Path) -> Iterator[bytes]:
    import numpy as np

    for path in files(data):
        with np.load(path) as arrays:
            yield from (arrays[name].tobytes() for name in sorted(arrays.files))


@program("np.memmap", "arrays", modules=["numpy"])
def memmap(data: Path, scratch: Path) -> Iterator[bytes]:
    import numpy as np

    yield from (np.memmap(path, mode="r").tobytes() for path in files(data))


@program("np.fromfile", "arrays", modules=["numpy"])
def fromfile(data: Path, scratch: Path) -> Iterator[bytes]:
    import numpy as np

    yield from (np.fromfile(path, dtype=np.uint8).tobytes() for path in files(data))


@program("h5py", "hdf5", modules=["h5py"])
def h5py(data: Path, scratch: Path) -> Iterator[bytes]:
    import h5py

    for path in files(data):
        with h5py.File(path, "r") as file:
            for name in sorted(file):
                # A piece from the middle first, as a shuffled reader does.
                yield file[name][3:5].tobytes()
                yield file[name][:].tobytes()
