"""Reading ahead for a program that does not know of it: `--order` and `--learn`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from transparent.inside import files
from transparent.launching import Conversation, arguments, copies, finished, report, wait_for_copies
from transparent.source_watch import SourceWatch

#: That copy, by default.
THREADS = 8


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Forty files of 100 kB."""
    (tmp_path / "shards").mkdir()
    for number in range(40):
        (tmp_path / "shards" / f"{number:02}.bin").write_bytes(
            random.Random(number).randbytes(100_000)
        )
    return tmp_path / "shards"


def reading(names: list[Path]) -> list[str]:
    """A program that reads as many of these files as its input says, repeatedly."""
    line = 'while read count; do printf "%s\\n" "$@" | head -n "$count" | xargs cat | md5sum; echo read; done'
    return ["sh", "-c", line, "sh", *map(str, names)]


def test_with_an_order_files_are_there_before_the_reader_asks(
    shards: Path, level: Path, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    names = random.Random(1).sample(files(shards), 40)
    lines = [
        str(path.relative_to(shards)) if at % 2 else str(path) for at, path in enumerate(names)
    ]
    order.write_text("# in the order of reading\n\n" + "\n".join(lines) + "\n")
    with Conversation(arguments(shards, [level], reading(names), "--order", order)) as run:
        wait_for_copies(level, [path.name for path in names])
        with SourceWatch(shards) as watch:
            run.tell("40")
            run.wait_for("read")
            # Each thread may have had one that was not announced yet.
            assert len(watch.opened()) <= THREADS
        run.end()


def test_files_read_in_one_run_are_prefetched_in_the_next(
    shards: Path, level: Path, tmp_path: Path
) -> None:
    names = random.Random(2).sample(files(shards), 40)
    with Conversation(arguments(shards, [level], reading(names), "--learn")) as run:
        for _ in range(3):
            run.tell("40")
            run.wait_for("read")
        run.end()
    for path in copies(level).values():
        path.unlink()
    with Conversation(arguments(shards, [level], reading(names), "--learn")) as run:
        # It begins the same way.
        run.tell("10")
        run.wait_for("read")
        wait_for_copies(level, [path.name for path in names])
        with SourceWatch(shards) as watch:
            run.tell("40")
            run.wait_for("read")
            assert len(watch.opened()) <= THREADS
        run.end()


def test_an_order_does_not_take_more_than_the_quota(
    shards: Path, level: Path, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    names = random.Random(3).sample(files(shards), 40)
    order.write_text("\n".join(path.name for path in names) + "\n")
    plain = finished(shards, [level], ["md5sum", *names]).stdout
    for path in copies(level).values():
        path.unlink()
    quota, written = 1_000_000, tmp_path / "report.json"
    program = ["sh", "-c", 'for epoch in 1 2 3; do md5sum "$@"; done', "sh", *names]
    levels = [f"{level}:{quota}B"]
    done = finished(shards, levels, program, "--order", order, "--report-json", written)
    assert done.stdout == plain * 3
    assert sum(path.stat().st_size for path in copies(level).values()) <= quota
    assert report(written)["levels"][0]["bytes"] <= quota


@pytest.mark.parametrize("text", ["../outside.bin\n", "/etc/hostname\n"])
def test_an_order_with_an_id_outside_of_the_dataset_is_an_error(
    text: str, shards: Path, level: Path, tmp_path: Path
) -> None:
    (tmp_path / "order").write_text(f"00.bin\n{text}")
    done = finished(shards, [level], ["echo", "started"], "--order", tmp_path / "order", status=2)
    assert done.stdout == b""
    assert b"line 2" in done.stderr
