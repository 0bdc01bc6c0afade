"""A limit on memory, page cache included, for a program that is measured (cgroups, version 1; root).

A loader that keeps nothing itself is kept for by the kernel, in whatever memory the machine has left.
Beside a loader with a RAM cache it gets as much: what its own processes hold, and the other's quotas.
What was really held is looked at while it runs, and printed.
"""

import contextlib
import dataclasses
import os
import pathlib
import threading
import time

from .process import CommandFailed

GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
# Seconds between two looks.
INTERVAL = 0.1
# Seconds in which processes of a group that has done its work end.
PATIENCE = 10


class NoCgroup(CommandFailed):
    """Memory cannot be limited here, so there is no peer to measure."""


@dataclasses.dataclass
class Held:
    """What the processes of a group held, in bytes, at most: pages of files (their own programs' too, where
    they read them first); memory of their own (anonymous, shared between them, and the kernel's on their
    behalf); and both together. Each at its own moment."""

    pages: int = 0
    own: int = 0
    used: int = 0

    def add(self, pages, used):
        self.pages, self.own, self.used = max(self.pages, pages), max(self.own, used - pages), max(self.used, used)


class MemoryGroup:
    """`with MemoryGroup(commands, limit) as group:` a command after `group.inside`, and what it starts, hold
    at most `limit` bytes, or any number without one. `group.held` says what they did hold."""

    def __init__(self, commands, limit=None, name=""):
        self.limit, self.held, self.over = limit, Held(), threading.Event()
        self.path = GROUPS / f"belady-bench-{os.getpid()}{name}"
        commands.name(self.path, "CGROUP")
        self.inside = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.path]
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        try:
            self.path.mkdir()
            if self.limit is not None:
                (self.path / "memory.limit_in_bytes").write_text(str(self.limit))
        except OSError as error:
            with contextlib.suppress(OSError):
                self.path.rmdir()
            raise NoCgroup(f"memory cannot be limited with a cgroup at {self.path}: {error}") from error
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
                    raise CommandFailed(f"{self.path} cannot be removed ({error}); processes in it: {left}") from error
                time.sleep(0.05)

    def _look(self):
        while not self.over.wait(INTERVAL):
            stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
            shared = int(stat["shmem"])
            pages = int(stat["cache"]) - shared
            used = int((self.path / "memory.usage_in_bytes").read_text())
            self.held.add(pages, used)
