"""Python's own ways to read a file."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transparent.inside import files, program


@program("Python open().read()")
def read(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in files(data):
        with open(path, "rb") as file:
            yield file.read()


@program("Python open(), lines")
def lines(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in files(data):
        with open(path, encoding="latin-1", newline="") as file:
            yield from (line.encode("latin-1") for line in file)


@program("Python readinto, seek")
def readinto(data: Path, scratch: Path) -> Iterator[bytes]:
    room = bytearray(5000)
    for path in files(data):
        with open(path, "rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            for at in range(0, size, len(room)):
                file.seek(size - min(size, at + len(room)))
                yield bytes(room[: file.readinto(room)])


@program("Python os.pread")
def pread(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in files(data):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(descriptor).st_size
        yield from (os.pread(descriptor, 70_000, at) for at in range(0, size, 70_000))
        os.close(descriptor)


@program("Python os.open relative to a directory")
def relative(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in files(data):
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        descriptor = os.open(path.name, os.O_RDONLY, dir_fd=directory)
        duplicate = os.dup(descriptor)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL), fcntl.fcntl(descriptor, fcntl.F_GETFD)
        os.close(descriptor)
        with open(duplicate, "rb") as file:
            yield file.read()
        yield repr(flags).encode()
        os.close(directory)


@program("Python mmap")
def mapped(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in files(data):
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                    yield bytes(memory)


@program("Python os.stat, os.access, then open")
def facts(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in files(data):
        for facts in (os.stat(path), os.lstat(path)):
            # Not the time of the last access: reading changes it.
            yield repr(
                [
                    getattr(facts, name)
                    for name in dir(facts)
                    if name.startswith("st_") and "atime" not in name
                ]
            ).encode()
        yield repr([os.access(path, how) for how in (os.F_OK, os.R_OK, os.W_OK)]).encode()
        with open(path, "rb") as file:
            same = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            yield repr(same).encode() + file.read()


@program("Python shutil.copyfile")
def copyfile(data: Path, scratch: Path) -> Iterator[bytes]:
    for number, path in enumerate(files(data)):
        shutil.copyfile(path, scratch / str(number))
        yield (scratch / str(number)).read_bytes()


@program("Python os.sendfile, os.copy_file_range")
def in_the_kernel(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in files(data):
        with open(path, "rb") as file, open(scratch / "copy", "wb+") as copy:
            half = os.fstat(file.fileno()).st_size // 2
            while half and (half := half - os.sendfile(copy.fileno(), file.fileno(), None, half)):
                pass
            while os.copy_file_range(file.fileno(), copy.fileno(), 1 << 20):
                pass
            copy.seek(0)
            yield copy.read()


@program("Python tarfile", "archives")
def from_tar(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in sorted(data.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                yield archive.extractfile(member).read()  # type: ignore[union-attr]


@program("Python zipfile", "archives")
def from_zip(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in sorted(data.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())


@program("Python, four threads")
def threads(data: Path, scratch: Path) -> Iterator[bytes]:
    with ThreadPoolExecutor(4) as pool:
        yield from pool.map(Path.read_bytes, files(data) * 8)
