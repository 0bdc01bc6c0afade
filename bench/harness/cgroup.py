"""A limit on memory, page cache included, for a program that is measured (cgroups of version 1 or 2; root).

The kernel caches files for a loader that has no cache, in all memory that the machine has left. Beside a
loader with a RAM cache it gets as much as that one: its own processes' memory, and the other's quotas.
What it really held is sampled while it runs, and printed.
"""

import contextlib
import dataclasses
import errno
import os
import pathlib
import threading
import time

from .process import CommandFailed

CGROUPS = pathlib.Path("/sys/fs/cgroup")
# Seconds between two looks.
INTERVAL = 0.1
# Seconds in which processes of a group that has done its work end.
PATIENCE = 10


class NoCgroup(CommandFailed):
    """Memory cannot be limited here, so there is no baseline with a page cache."""


@dataclasses.dataclass
class Held:
    """What the processes of a group held, in bytes, at most: pages of files (their own programs' too, where
    they read them first); memory of their own (anonymous, shared between them, and the kernel's on their
    behalf); and both together. Each at its own moment."""

    pages: int = 0
    own: int = 0
    used: int = 0

    def add(self, pages, used):
        self.pages, self.own, self.used = (
            max(self.pages, pages),
            max(self.own, used - pages),
            max(self.used, used),
        )


@dataclasses.dataclass(frozen=True)
class Hierarchy:
    """Where groups are made, and what the kernel calls a group's files and the pages in `memory.stat`."""

    groups: pathlib.Path
    limit: str
    used: str
    pages: str

    def held(self, group):
        """Pages of files, and all that is used, in bytes."""
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Memory that processes share is kept as pages of files that have no name.
        return int(stat[self.pages]) - int(stat["shmem"]), int((group / self.used).read_text())


def hierarchy(root=CGROUPS):
    """That of this machine. Raises `NoCgroup` where there is none that could limit memory."""
    if (root / "memory" / "memory.stat").exists():
        return Hierarchy(root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "cache")
    controllers, children = root / "cgroup.controllers", root / "cgroup.subtree_control"
    try:
        if "memory" not in controllers.read_text().split():
            raise NoCgroup(
                f"memory cannot be limited: {controllers} does not name the memory controller"
            )
        if "memory" not in children.read_text().split():
            children.write_text("+memory")
    except OSError as error:
        why = "; in a container its own processes are in that group, and have to be moved to one below it first"
        told = f"memory cannot be limited with a cgroup: {error}{why if error.errno == errno.EBUSY else ''}"
        raise NoCgroup(told) from error
    return Hierarchy(root, "memory.max", "memory.current", "file")


class MemoryGroup:
    """`with MemoryGroup(commands, limit) as group:` a command after `group.inside`, and what it starts, hold
    at most `limit` bytes, or any number without one. `group.held` says what they did hold."""

    def __init__(self, commands, limit=None, name=""):
        self.limit, self.held, self.over = limit, Held(), threading.Event()
        self.hierarchy = hierarchy()
        self.path = self.hierarchy.groups / f"belady-bench-{os.getpid()}{name}"
        commands.name(self.path, "CGROUP")
        self.inside = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.path]
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        try:
            self.path.mkdir()
            if self.limit is not None:
                (self.path / self.hierarchy.limit).write_text(str(self.limit))
        except OSError as error:
            with contextlib.suppress(OSError):
                self.path.rmdir()
            raise NoCgroup(
                f"memory cannot be limited with a cgroup at {self.path}: {error}"
            ) from error
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        # Workers may end a moment after the process that started them. Pages that outlive their readers are
        # handed to the parent group.
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self.path.rmdir()
            except OSError as error:
                if time.monotonic() > until:
                    left = ", ".join((self.path / "cgroup.procs").read_text().split())
                    raise CommandFailed(
                        f"{self.path} cannot be removed ({error}); processes in it: {left}"
                    ) from error
                time.sleep(0.05)

    def _look(self):
        while not self.over.wait(INTERVAL):
            self.held.add(*self.hierarchy.held(self.path))
