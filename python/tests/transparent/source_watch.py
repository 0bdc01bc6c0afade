"""Watches opens of the source's files through the kernel, by any process and call."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from pathlib import Path
from types import TracebackType

IN_OPEN = 0x20
IN_ISDIR = 0x4000_0000
IN_Q_OVERFLOW = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)


class SourceWatch:
    """Counts opens of a directory's files, by their names relative to it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._watches: dict[int, Path] = {}
        self._descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        for directory in (root, *(path for path in root.rglob("*") if path.is_dir())):
            watch = _libc.inotify_add_watch(self._descriptor, os.fsencode(directory), IN_OPEN)
            self._watches[_checked(watch)] = directory

    def __enter__(self) -> SourceWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def opened(self) -> Counter[str]:
        """What was opened since the last call."""
        seen: Counter[str] = Counter()
        while True:
            try:
                events = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return seen
            seen += self._names(events)

    def _names(self, events: bytes) -> Counter[str]:
        seen: Counter[str] = Counter()
        while events:
            watch, mask, _, length = struct.unpack_from("iIII", events)
            name, events = events[16 : 16 + length].rstrip(b"\0"), events[16 + length :]
            assert not mask & IN_Q_OVERFLOW, "more opens than the kernel keeps"
            if not mask & IN_ISDIR and mask & IN_OPEN:
                path = self._watches[watch] / os.fsdecode(name)
                seen[str(path.relative_to(self._root))] += 1
        return seen


def _checked(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), "inotify does not work here")
    return answer
