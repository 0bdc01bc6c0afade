"""Datasets that the programs read, a kind for each way to store samples."""

from __future__ import annotations

import os
import random
import sqlite3
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from transforms.pictures import make_photos
from transforms.shards import example, write_tar, write_tfrecord

#: Long ago and with a fraction, so that a time that is made up or rounded shows.
LONG_AGO = 1_234_567_890_123_456_789


def tree(root: Path) -> None:
    """Sizes around pages and pieces, directories, odd names, modes, times, and links of both kinds."""
    draw = random.Random(3)
    (root / "deep" / "er").mkdir(parents=True)
    sizes = {"a.bin": 1, "b.bin": 4095, "c.bin": 4096, "deep/d.bin": 4097, "deep/er/e.bin": 300_000}
    for name, size in sizes.items():
        (root / name).write_bytes(draw.randbytes(size))
    (root / "large.bin").write_bytes(draw.randbytes(3_000_001))
    (root / "empty.bin").touch()
    (root / "with space, ümlaut.bin").write_bytes(b"odd name")
    words = ["the owl", "the cat", "a pea green boat"]
    (root / "lines.txt").write_text("\n".join(draw.choices(words, k=2000)) + "\n")
    for number, path in enumerate(sorted(root.rglob("*"))):
        if path.is_file():
            path.chmod((0o644, 0o600, 0o444, 0o755)[number % 4])
            os.utime(path, ns=(LONG_AGO, LONG_AGO + number * 1_000_000_007))
    (root / "deep" / "link.bin").symlink_to("../b.bin")
    os.link(root / "a.bin", root / "twin.bin")


def archives(root: Path) -> None:
    for number in range(3):
        samples = [{"bin": random.Random(at).randbytes(2000 + at)} for at in range(20)]
        write_tar(root / f"{number}.tar", samples)
        with zipfile.ZipFile(root / f"{number}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for at, sample in enumerate(samples):
                archive.writestr(f"{at}.bin", sample["bin"])
    assert tarfile.is_tarfile(root / "0.tar")


def arrays(root: Path) -> None:
    import numpy as np

    for number in range(6):
        values = np.random.default_rng(number).standard_normal((50 + number, 37))
        np.save(root / f"{number}.npy", values)


def zipped(root: Path) -> None:
    import numpy as np

    for number in range(3):
        np.savez(root / f"{number}.npz", first=np.arange(500 + number), second=np.eye(20))


def hdf5(root: Path) -> None:
    import h5py
    import numpy as np

    for number in range(3):
        draw = np.random.default_rng(number)
        with h5py.File(root / f"{number}.h5", "w") as file:
            file["plain"] = draw.standard_normal((40, 100))
            digits = draw.integers(0, 9, (64, 64))
            file.create_dataset("packed", data=digits, chunks=(8, 64), compression="gzip")


def tensors(root: Path) -> None:
    import torch

    for number in range(3):
        torch.save({"w": torch.randn(100, 50), "b": torch.arange(1000)}, root / f"{number}.pt")


def safetensors(root: Path) -> None:
    import torch
    from safetensors.torch import save_file

    for number in range(3):
        save_file(
            {"w": torch.randn(100, 50), "b": torch.arange(1000)}, root / f"{number}.safetensors"
        )


def photos(root: Path) -> None:
    make_photos(root, each=5)


def records(root: Path) -> None:
    """TFRecords, and where their records are, as DALI takes them."""
    for number in range(3):
        draw = random.Random(number)
        examples = [{"image": draw.randbytes(draw.randint(500, 5000))} for _ in range(12)]
        write_tfrecord(root / f"{number}.tfrecord", examples)
        at, index = 0, ""
        for features in examples:
            # Length and its checksum, the record and its checksum.
            size = struct.calcsize("<QI") + len(example(features)) + struct.calcsize("<I")
            index += f"{at} {size}\n"
            at += size
        (root / f"{number}.index").write_text(index)


def parquet(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number in range(3):
        draw = random.Random(number)
        rows = {"id": list(range(500)), "text": [draw.randbytes(40) for _ in range(500)]}
        pq.write_table(pa.table(rows), root / f"{number}.parquet")


def lmdb(root: Path) -> None:
    import lmdb

    with lmdb.open(str(root), map_size=1 << 24) as database, database.begin(write=True) as change:
        for number in range(200):
            change.put(f"{number:05}".encode(), random.Random(number).randbytes(1000))
    (root / "lock.mdb").unlink()


def sqlite(root: Path) -> None:
    database = sqlite3.connect(root / "samples.db")
    database.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, bytes BLOB)")
    rows = [(number, random.Random(number).randbytes(500)) for number in range(400)]
    database.executemany("INSERT INTO samples VALUES (?, ?)", rows)
    database.commit()
    database.close()


KINDS: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker
    for maker in (
        tree,
        archives,
        arrays,
        zipped,
        hdf5,
        tensors,
        safetensors,
        photos,
        records,
        parquet,
        lmdb,
        sqlite,
    )
}
