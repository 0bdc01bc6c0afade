"""Memory limits of control groups, from trees like those of real machines."""

from __future__ import annotations

from pathlib import Path

from belady._configuration import memory

GIB = 1 << 30


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/meminfo").write_text(
        f"MemTotal: {64 << 20} kB\nMemFree: 5 kB\nMemAvailable: {32 << 20} kB\n"
    )
    for name, text in files.items():
        (root / "sys/fs/cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / name).write_text(text)
    return root


def test_without_a_limit_the_machine_decides(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/job\n", {"job/memory.max": "max\n"})
    assert memory.limit(root) is None
    assert memory.available(root) == 32 * GIB


def test_version_two_at_any_level(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/slurm/job/step\n",
        {
            "slurm/job/step/memory.max": "max\n",
            "slurm/job/memory.max": f"{8 * GIB}\n",
            "slurm/job/memory.current": f"{3 * GIB}\n",
            "slurm/job/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "slurm/memory.max": f"{16 * GIB}\n",
        },
    )
    assert memory.limit(root) == 8 * GIB
    assert memory.available(root) == 6 * GIB


def test_version_one_within_a_container(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/\n",
        {
            "memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "memory/memory.usage_in_bytes": f"{GIB}\n",
        },
    )
    assert memory.limit(root) == 2 * GIB
    assert memory.available(root) == GIB


def test_a_limit_of_nearly_two_to_the_63_is_none(tmp_path: Path) -> None:
    root = machine(
        tmp_path, "4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}
    )
    assert memory.limit(root) is None


def test_this_machine_has_memory() -> None:
    assert memory.available() > 0
