"""This process and those it started: what they take, by the kernel's account."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
# What the kernel calls mappings of memory that has no file on a disk.
_SHARED = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV", "[anon_shmem:")


def descendants(root: int) -> list[int]:
    """The process and all below it that are there now."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += parents.get(pid, [])
    return found


def cpu_seconds() -> float:
    """Of this process, and of those below it, ended ones included."""
    total = 0
    for pid in descendants(os.getpid()):
        fields = _stat(pid)
        # utime, stime, and of children that were waited for.
        total += sum(int(value) for value in fields[11:15]) if fields else 0
    return total / _TICKS


def proportional_bytes(root: int) -> int:
    """Memory of a tree: what processes share is counted once (PSS)."""
    total = 0
    for pid in descendants(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has ended meanwhile
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


class Held(NamedTuple):
    """Anonymous and shared memory of this process, in bytes."""

    staging: int
    """belady's staging buffer: the one mapping that wants large pages (hg) and that no forked child inherits (dc)."""
    other: int


def held() -> Held:
    """One look at all mappings. The staging buffer changes by tens of MiB within milliseconds, also between epochs, so that
    the difference of two looks (the process, then the buffer) counts part of the buffer as other memory."""
    staging = other = 0
    path, sizes = "", {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split(maxsplit=5)
        if not name.endswith(":"):
            path, sizes = values[4] if len(values) > 4 else "", {}
        elif name in ("Rss:", "Anonymous:"):
            sizes[name] = int(values[0]) << 10
        elif name == "VmFlags:":
            resident = sizes["Rss:" if path.startswith(_SHARED) else "Anonymous:"]
            if {"hg", "dc"} <= set(line.split()):
                staging += resident
            else:
                other += resident
    return Held(staging, other)


def _stat(pid: int) -> list[str]:
    """What follows the name, which may have spaces: state, parent, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()
