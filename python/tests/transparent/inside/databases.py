"""Tables and databases in files: Arrow, LMDB, SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from transparent.inside import files, program


@program("pyarrow Parquet", "parquet", modules=["pyarrow"])
def parquet(data: Path, scratch: Path) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    for path in files(data):
        for mapped in (False, True):
            table = pq.read_table(path, memory_map=mapped)
            yield repr(table.to_pydict()).encode()


@program("lmdb (read-only)", "lmdb", modules=["lmdb"])
def lmdb(data: Path, scratch: Path) -> Iterator[bytes]:
    import lmdb

    with lmdb.open(str(data), readonly=True, lock=False) as database, database.begin() as view:
        for key, value in view.cursor():
            yield bytes(key)
            yield bytes(value)


@program("SQLite (read-only)", "sqlite")
def sqlite(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in files(data):
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        yield from (repr(row).encode() for row in database.execute("SELECT * FROM samples"))
        database.close()
