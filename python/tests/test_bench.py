"""What the tables of the benchmarks say, and how they are made; nothing here measures."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "loaders")]

import classes  # type: ignore[import-not-found]  # noqa: E402
import tree  # type: ignore[import-not-found]  # noqa: E402
from harness import cgroup, process, table, transparent_slow  # type: ignore[import-not-found]  # noqa: E402


def test_a_table_says_its_command_commit_runs_day_and_machine() -> None:
    line = table.heading("python3 bench/x.py", 3)
    assert line.startswith("`python3 bench/x.py` at ")
    assert process.commit() in line
    assert process.machine() in line
    assert "3 runs, 20" in line


def test_a_figure_is_shown_with_its_median_and_its_spread() -> None:
    assert table.spread([3.0, 1.5, 2.0], table.seconds) == "2.00 s (1.50–3.00 s)"
    assert table.spread([0.5, 2.0, 1.0], table.seconds) == "1.00 s (500.0 ms–2.00 s)"
    assert table.spread([7, 7, 7], table.whole) == "7"


def test_fewer_than_three_runs_are_not_written_into_the_documentation() -> None:
    for script in ("engine.py", "gpu.py"):
        command = [sys.executable, ROOT / "bench" / script, "--write-docs", "--runs", "2"]
        refused = subprocess.run(command, capture_output=True, text=True)
        assert refused.returncode == 2 and "--write-docs" in refused.stderr, refused.stderr


def test_every_table_of_the_documentation_says_its_commit_and_runs() -> None:
    for name, text in table.sections(table.METHODS.read_text()).items():
        head = text.partition("\n")[0]
        if "|" in text:
            assert "commit " in head and "run" in head, f"{name}: {head}"


def test_the_readme_the_results_and_the_pictures_say_what_the_tables_say() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "bench" / "summary.py", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


NOW = "`python3 bench/engine.py --only {} --runs 3` at commit abc1234, 3 runs, 2026-11-16, on 2 cores:"
OLDER = (
    "`python3 bench/engine.py --only {}` in a table of commit ff539e0, the best of 3 runs, 2026-11-15, on 2 cores:",
    "`python3 bench/engine.py --only {}` at commit abc1234, 3 runs, by an older method (without huge pages), 2026-11-15, on 2 cores:",
    "`python3 bench/cluster.py --only {}` in a table of commit e0a5343, 1 run, torch without page cache only, 2026-11-15, on 2 cores:",
    "Not measured since it became a table.",
)


def warm_and_cold(warm: str, cold: str) -> dict[str, str]:
    """All tables that the summary reads, empty but for two of them, with these headings."""
    import summary  # type: ignore[import-not-found]

    tables = {line.table: "Not measured." for line in summary.LINES}
    rows = (
        "\n\n| reader | threads | of the pool |  |\n|---|---|---|---|\n| belady | {} | {} % | {} |"
    )
    tables["warm"] = warm.format("warm") + rows.format(
        2, 95, "ok (at least 90%), **missed** (at least 99%)"
    )
    tables["cold"] = cold.format("cold") + rows.format(
        4, 85, "ok (at least 80%), **missed** (at least 90%)"
    )
    return tables


def test_the_summary_says_of_how_many_runs_each_figure_is() -> None:
    import summary

    text = summary.summary(warm_and_cold(NOW, NOW))
    assert (
        "| files in the page cache, compared with a bare pread pool | 95 % (2 threads) | the same | 3 |"
        in text
    )
    assert "Of their targets 2 are met and 2 are [missed]" in text
    listed = summary.missed(warm_and_cold(NOW, NOW))
    assert "| warm | belady, 2, 95 % | at least 99% | 3 |" in listed


@pytest.mark.parametrize("older", OLDER)
def test_verdicts_and_figures_of_an_older_method_do_not_count(older: str) -> None:
    import summary

    text = summary.summary(warm_and_cold(older, NOW))
    assert "Of their targets 1 are met and 1 are [missed]" in text
    assert (
        "95 %" not in text and "files in the page cache" in text.partition("Not measured since")[2]
    )
    assert "| warm | belady, 2, 95 % | at least 99% | an older method |" in summary.missed(
        warm_and_cold(older, NOW)
    )


def test_the_heading_of_every_table_that_is_made_now_counts() -> None:
    for commit in ("commit abc1234", "commit abc1234, changed since", "a commit that is not known"):
        assert table.runs_of(table.heading("python3 bench/x.py", 1, commit=commit)) == 1
    assert table.runs_of(table.heading("python3 bench/x.py", 12)) == 12


def test_operations_of_all_epochs_count_the_first_and_what_is_copied_after_it() -> None:
    def counters(reads: int) -> dict[str, int]:
        return {name: 0 for name in transparent_slow.OPERATIONS} | {"read": reads}

    epochs = [(0, 150), (160, 204), (204, 248)]
    run = {
        "epochs": [{"counters": [counters(before), counters(after)]} for before, after in epochs]
    }
    assert transparent_slow.operations(run) == 44
    assert transparent_slow.all_operations(run) == 248


#: A rank that reports its epochs, slower in the second job than in the first, or fails there.
RANK = """#!{python}
import json, os, pathlib, sys, time
rank = sys.argv[sys.argv.index("--rank") + 1]
mark = pathlib.Path(__file__).with_name("started-" + rank)
second = mark.exists()
mark.touch()
time.sleep(0.5)
if second and rank == "{fails}":
    sys.exit("no space left")
seconds = 6.0 if second else 2.0
epochs = [{{"seconds": seconds, "source_reads": 5}}] * 3
print(json.dumps({{"epochs": epochs, "peers": {{"retries": 7}}}}))
"""


def absence(folder: Path, monkeypatch: pytest.MonkeyPatch, fails: str = "none") -> int:
    """The exit status of a stopped rank's benchmark, with ranks that only pretend."""
    import absence as script  # type: ignore[import-not-found]

    belady = folder / "belady"
    belady.write_text(RANK.format(python=sys.executable, fails=fails))
    belady.chmod(0o755)
    monkeypatch.setattr(script, "FILES", 4)
    options = ["--belady", str(belady), "--fault", "stop", "--after", "0", "--away", "0.1"]
    monkeypatch.setattr(sys, "argv", ["absence.py", *options])
    with pytest.raises(SystemExit) as ended:
        script.main()
    return ended.value.code  # type: ignore[return-value]


def test_epochs_with_a_fault_are_compared_with_those_of_a_run_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert absence(tmp_path, monkeypatch) == 0
    none, stop, _ = capsys.readouterr().out.splitlines()
    assert none.startswith("none     epochs 1.0 1.0 1.0 times")
    assert stop.startswith(
        "stop     epochs 3.0 3.0 3.0 times those without a fault (2.00 s); retries 21, source reads"
    )


def test_the_benchmark_of_a_fault_fails_when_a_rank_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for fails in ("1", "2"):
        folder = tmp_path / fails
        folder.mkdir()
        assert absence(folder, monkeypatch, fails) == 1
        assert f"rank {fails} failed with status 1: no space left" in capsys.readouterr().out


def version_2(root: Path, controllers: str = "cpu io memory pids", children: str = "cpu") -> Path:
    """The root of cgroups of version 2, as the kernel shows it."""
    (root / "cgroup.controllers").write_text(f"{controllers}\n")
    (root / "cgroup.subtree_control").write_text(f"{children}\n")
    return root


def test_a_memory_cgroup_of_either_version_says_what_its_processes_hold(tmp_path: Path) -> None:
    found = cgroup.hierarchy(version_2(tmp_path))
    assert found.groups == tmp_path and found.limit == "memory.max"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory", (
        "groups below it can limit memory"
    )
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.stat").write_text("anon 5000\nfile 9000\nshmem 2000\n")
    (group / "memory.current").write_text("15000\n")
    assert found.held(group) == (7000, 15000)

    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.stat").write_text("cache 9000\nrss 5000\nshmem 2000\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("15000\n")
    found = cgroup.hierarchy(tmp_path)
    assert found.limit == "memory.limit_in_bytes"
    assert found.held(tmp_path / "memory") == (7000, 15000)


def test_without_a_memory_controller_a_page_cache_is_left_out_and_the_reason_is_told(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        cgroup.NoCgroup, match="cgroup.controllers does not name the memory controller"
    ):
        cgroup.hierarchy(version_2(tmp_path, controllers="hugetlb"))
    (tmp_path / "cgroup.controllers").unlink()
    with pytest.raises(
        cgroup.NoCgroup, match="memory cannot be limited with a cgroup: .*cgroup.controllers"
    ):
        cgroup.hierarchy(tmp_path)


def test_a_page_cache_in_a_memory_cgroup_stays_within_its_limit() -> None:
    limit = 48 << 20
    # In the build folder, which is on a disk; /tmp may be memory. It is not there where cargo builds elsewhere.
    folder = ROOT / "target"
    folder.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(96):
            file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        # Pages count for the group that reads them first.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            with cgroup.MemoryGroup(process.Commands(), limit, "-test") as group:
                command = [*group.inside, "sh", "-c", 'cat "$0" > /dev/null; sleep 0.5', file.name]
                subprocess.run([str(part) for part in command], check=True)
        except cgroup.NoCgroup as error:
            pytest.skip(str(error))
    assert 16 << 20 < group.held.pages <= limit


def test_a_staging_buffer_that_changes_between_looks_never_counts_as_other_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 16 << 20
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        buffer.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        pytest.skip(
            f"this kernel has no large pages, by which the staging buffer is known: {error}"
        )
    buffer.madvise(mmap.MADV_DONTFORK)
    filled, read_text = False, Path.read_text

    def read_and_change(path: Path) -> str:
        """What belady's threads do meanwhile: batches come, and their memory goes back."""
        nonlocal filled
        text, filled = read_text(path), not filled
        if filled:
            buffer[::4096] = bytes(size // 4096)
        else:
            buffer.madvise(mmap.MADV_DONTNEED)
        return text

    monkeypatch.setattr(Path, "read_text", read_and_change)
    looks = [tree.held() for _ in range(9)]
    assert [look.staging - looks[0].staging for look in looks] == [0, size] * 4 + [0]
    others = [look.other for look in looks]
    assert max(others) - min(others) < size / 4


def test_memory_of_either_kind_is_counted_and_that_of_files_is_not(tmp_path: Path) -> None:
    size = 16 << 20
    file = tmp_path / "file"
    file.write_bytes(bytes(size))
    before = tree.held().other
    private = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared = mmap.mmap(-1, size)
    with file.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), size)
    for memory in (private, shared, mapped):
        memory[::4096] = bytes(size // 4096)
    assert abs(tree.held().other - before - 2 * size) < size / 4


def test_the_bound_of_a_job_is_what_no_cache_reads_less_than() -> None:
    everything = [[[0, 1], [2, 3]], [[3, 0], [1, 2]], [[2, 3], [0, 1]]]
    sizes = dict.fromkeys(range(4), 10)
    for room in (0, 5, 10, 25, 40):
        assert classes.minimum(everything, sizes, room) == [40, 40 - room, 40 - room], room
    again = [[[0, 1], [1, 2]], [[0], [2]]]
    # Sample 1 is used again at once and leaves its room to sample 2; a sample twice in a step is read once.
    assert classes.minimum(again, sizes, 20) == [30, 0]
    assert classes.minimum(again, sizes, 10) == [30, 10]
    assert classes.minimum([[[0, 0]]], sizes, 0) == [10]
