"""The programs of docs/transparent.md, as they run inside of `belady run`.

A program is a function that reads a dataset and yields what it got. Each has its line in the table
of docs/transparent.md, by its name."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

Read = Callable[[Path, Path], Iterable[bytes]]


@dataclass(frozen=True)
class Program:
    """A real program, or a real library's way to read files."""

    name: str
    #: Reads all of a dataset, given its directory and an empty one to write to.
    read: Read
    #: The kind of dataset, as `made.py` names them.
    data: str
    #: Executables and Python modules that have to be there.
    commands: tuple[str, ...]
    modules: tuple[str, ...]

    def missing(self) -> list[str]:
        """What is not installed here."""
        return [name for name in self.commands if shutil.which(name) is None] + [
            name for name in self.modules if importlib.util.find_spec(name) is None
        ]


PROGRAMS: dict[str, Program] = {}


def program(
    name: str, data: str = "tree", *, command: str | None = None, modules: Iterable[str] = ()
) -> Callable[[Read], Read]:
    """Adds a program to the list."""

    def add(read: Read) -> Read:
        assert name not in PROGRAMS
        needed = (command,) if command else ()
        PROGRAMS[name] = Program(name, read, data, needed, tuple(modules))
        return read

    return add


def files(data: Path) -> list[Path]:
    """All files of a dataset, in order, also those behind symbolic links."""
    return sorted(path for path in data.rglob("*") if path.is_file())


def digest(parts: Iterable[bytes]) -> str:
    """Differs if any part does."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()


from transparent.inside import (  # noqa: E402, F401  (they add themselves)
    arrays,
    commands,
    databases,
    images,
    plain,
    records,
    runtimes,
    tensors,
)

__all__ = ["PROGRAMS", "Program", "digest", "files", "program"]
