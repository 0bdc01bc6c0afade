"""A source that changed between two runs, or during one, from outside of the job."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from transparent.launching import (
    Conversation,
    arguments,
    copies,
    fill,
    finished,
    until,
    wait_for_copies,
)
from transparent.source_watch import SourceWatch

OLD = b"as it was when it was copied " * 100
NEW = OLD.upper()


def grow(path: Path) -> None:
    facts = path.stat()
    path.write_bytes(NEW + b"more")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def write(path: Path) -> None:
    path.write_bytes(NEW)


def exchange(path: Path) -> None:
    """Another file of the same size and time, by the same name."""
    facts = path.stat()
    other = path.with_suffix(".other")
    other.write_bytes(NEW)
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.rename(path)


CHANGES = [
    pytest.param(grow, id="size"),
    pytest.param(write, id="mtime"),
    pytest.param(exchange, id="inode"),
]


@pytest.fixture
def sample(own: Path) -> Path:
    path = own / "deep" / "sample.bin"
    path.write_bytes(OLD)
    return path


def test_a_second_run_is_warm(own: Path, level: Path) -> None:
    fill(own, level)
    before = {name: path.stat().st_ino for name, path in copies(level).items()}
    with SourceWatch(own) as watch:
        done = finished(own, [level], ["cat", own / "large.bin"])
        assert not watch.opened()
    assert done.stdout == (own / "large.bin").read_bytes()
    assert {name: path.stat().st_ino for name, path in copies(level).items()} == before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("revalidate", ["start", "open", None])
def test_a_file_that_changed_between_runs_is_not_served_from_its_old_copy(
    revalidate: str | None, change: Callable[[Path], None], own: Path, sample: Path, level: Path
) -> None:
    fill(own, level)
    change(sample)
    new = sample.read_bytes()
    assert new != OLD
    options = ["--revalidate", revalidate] if revalidate else []
    line = 'cat "$1"; stat -c %s "$1"; cat "$1"; echo; echo read; read go'
    command = arguments(own, [level], ["sh", "-c", line, "sh", sample], *options)
    expected = (new + f"{len(new)}\n".encode() + new).decode()
    with Conversation(command) as run:
        # It gets a copy of what it is now.
        assert run.read_until("read") == expected
        wait_for_bytes(level, "deep/sample.bin", new)
        run.tell("go")
        run.end()
    with SourceWatch(own) as watch:
        assert finished(own, [level], ["cat", sample], *options).stdout == new
        assert not watch.opened()


@pytest.mark.parametrize("change", CHANGES)
def test_never_means_never(
    change: Callable[[Path], None], own: Path, sample: Path, level: Path
) -> None:
    fill(own, level)
    change(sample)
    assert finished(own, [level], ["cat", sample], "--revalidate", "never").stdout == OLD


@pytest.mark.parametrize("change", CHANGES)
def test_open_sees_what_changes_during_a_run(
    change: Callable[[Path], None], own: Path, sample: Path, level: Path
) -> None:
    with Conversation(conversation(own, sample, level, "open")) as run:
        assert run.read_until("read").encode() == OLD
        wait_for_copies(level, ["deep/sample.bin"])
        run.tell("again")
        assert run.read_until("read").encode() == OLD
        change(sample)
        run.tell("again")
        assert run.read_until("read").encode() == sample.read_bytes()
        run.end()


@pytest.mark.parametrize("revalidate", ["start", "never"])
def test_what_others_on_the_machine_change_is_seen_a_moment_later_unless_never(
    own: Path, sample: Path, level: Path, revalidate: str
) -> None:
    fill(own, level)
    with Conversation(conversation(own, sample, level, revalidate)) as run:
        assert run.read_until("read").encode() == OLD
        write(sample)

        def seen() -> bytes:
            run.tell("again")
            return run.read_until("read").encode()

        if revalidate == "start":
            until(lambda: seen() == NEW)
        else:
            assert seen() == OLD
        run.end()
    assert finished(own, [level], ["cat", sample]).stdout == NEW


def test_a_deleted_source_is_not_served(own: Path, sample: Path, level: Path) -> None:
    fill(own, level)
    sample.unlink()
    finished(own, [level], ["cat", sample], status=1)


def test_links_are_still_links_in_the_next_run(own: Path, level: Path, tmp_path: Path) -> None:
    """Also one that leads out of the dataset, whose copy is separate."""
    (tmp_path / "elsewhere.bin").write_bytes(OLD)
    (own / "far.bin").symlink_to(tmp_path / "elsewhere.bin")
    fill(own, level)
    links = [own / "far.bin", own / "deep" / "link.bin"]
    each = 'test -L "$path" && readlink "$path"; stat -c "%F %s" "$path"'
    line = f'cat "$@" | md5sum; for path; do {each}; done'
    program = ["sh", "-c", line, "sh", *links]
    plain = subprocess.run(list(map(str, program)), capture_output=True, check=True)
    with SourceWatch(own) as watch:
        assert finished(own, [level], program).stdout == plain.stdout
        assert not watch.opened()


def conversation(data: Path, path: Path, level: Path, revalidate: str) -> list[str]:
    line = 'while cat "$1"; echo; echo read; read go; do :; done; true'
    return arguments(data, [level], ["sh", "-c", line, "sh", path], "--revalidate", revalidate)


def wait_for_bytes(level: Path, name: str, wanted: bytes) -> None:
    """Returns when the copy of a file has these bytes; meanwhile the old one goes."""

    def is_there() -> bool:
        with contextlib.suppress(KeyError, FileNotFoundError):
            return copies(level)[name].read_bytes() == wanted
        return False

    until(is_there)
