"""The memory that this process may use.

Containers and batch systems limit memory by control groups, of which Linux has two versions. A
limit may be set at any level above the process, so all levels are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def limit(root: Path = _ROOT) -> int | None:
    """Returns the smallest limit of the process's control groups in bytes; None without one."""
    found = [
        value
        for directory, name, _ in _groups(root)
        if (value := _number(directory / name)) is not None and value < total(root)
    ]
    return min(found, default=None)


def available(root: Path = _ROOT) -> int:
    """Returns the free memory in bytes, within the machine and all limits."""
    free = [_meminfo(root, "MemAvailable")]
    for directory, name, usage in _groups(root):
        ceiling, used = _number(directory / name), _number(directory / usage)
        if ceiling is not None and used is not None:
            # Page cache counts as used, but the kernel reclaims it.
            free.append(max(0, ceiling - used + _file_cache(directory)))
    return min(free)


def _groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Yields the directories of the memory groups, with the names of limit and usage."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            # Within a container the path may be that of the host; the root is then this group.
            yield base.joinpath(*parts[:depth]), *names


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file, or the word "max"
        return None


def _file_cache(directory: Path) -> int:
    try:
        lines = (directory / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    stat = dict(line.split(" ", 1) for line in lines if " " in line)
    for name in ("total_inactive_file", "inactive_file"):
        if name in stat:
            return int(stat[name])
    return 0


def total(root: Path = _ROOT) -> int:
    """Returns the memory of the machine in bytes; 0 if it is not known."""
    return _meminfo(root, "MemTotal")


def _meminfo(root: Path, key: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0
