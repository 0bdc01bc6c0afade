"""How much memory this process may use.

Containers and batch systems limit memory by control groups, of which Linux has two versions.
A limit may stand at any level above the process, so all levels are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def limit(root: Path = _ROOT) -> int | None:
    """The smallest limit of the process's control groups in bytes; None without one."""
    found = [
        value
        for directory, name, _ in _groups(root)
        if (value := _number(directory / name)) is not None and value < total(root)
    ]
    return min(found, default=None)


def available(root: Path = _ROOT) -> int:
    """Bytes that can still be had, within the machine and all limits."""
    rooms = [_meminfo(root, "MemAvailable")]
    for directory, name, usage in _groups(root):
        ceiling, used = _number(directory / name), _number(directory / usage)
        if ceiling is not None and used is not None:
            # Page cache counts as used, but is given back under pressure.
            rooms.append(max(0, ceiling - used + _file_cache(directory)))
    return min(rooms)


def _groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Directories of the process's memory groups, with their files for limit and usage."""
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
            # Within a container the path may be that of the host; its root is then ours.
            yield base.joinpath(*parts[:depth]), *names


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # not there, or the word "max"
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
    """Memory of the machine in bytes; 0 if that is not known."""
    return _meminfo(root, "MemTotal")


def _meminfo(root: Path, key: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0
