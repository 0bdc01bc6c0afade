"""This process and those it started: what they take, by the kernel's account."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


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


def own_bytes() -> int:
    """Anonymous and shared memory of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def staging_bytes() -> int:
    """Memory of belady's staging buffer: the one mapping that wants large pages (hg) and that no forked child
    inherits (dc)."""
    total = resident = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Anonymous":
            resident = int(value.split()[0]) << 10
        elif name == "VmFlags" and {"hg", "dc"} <= set(value.split()):
            total += resident
    return total


def _stat(pid: int) -> list[str]:
    """What follows the name, which may have spaces: state, parent, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()
