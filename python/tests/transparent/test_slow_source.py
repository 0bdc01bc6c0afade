"""A slow file system that counts what it is asked for: after the first epoch, nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from transparent.inside import files
from transparent.launching import Conversation, arguments, until

ROOT = Path(__file__).parents[3]


def slowfs() -> Path | None:
    """As `cargo build` or the tests of Rust have left it."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / profile / "slowfs" for profile in ("debug", "release")]
    return next((path for path in built if path.exists()), None)


@pytest.fixture
def slow(tree: Path, tmp_path: Path) -> Iterator[Path]:
    """The tree, seen through the slow file system."""
    command = slowfs()
    if command is None:
        pytest.skip("slowfs is not built: cargo build -p slowfs")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no FUSE")
    mount = tmp_path / "slow"
    mount.mkdir()
    options = ["--throughput", "1:200MB/s", "--metadata-cache", "0s"]
    process = subprocess.Popen([command, tree, mount, *options], stderr=subprocess.PIPE)
    try:
        until(lambda: process.poll() is not None or mount.is_mount())
        if process.poll() is not None:
            assert process.stderr is not None
            output = process.stderr.read().decode()
            assert "cannot mount" in output, output
            print(output)
            pytest.skip("no FUSE")
        yield mount
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def counted(mount: Path) -> dict[str, int]:
    made: dict[str, int] = json.loads((mount / ".slowfs-stats").read_text())
    return made


#: Makes the calls of programs on each file, reads it, and prints how many came from a level.
READER = """
import os, sys
level, *paths = sys.argv[1:]
for line in sys.stdin:
    served = 0
    for path in paths:
        facts = os.stat(path), os.lstat(path), os.access(path, os.R_OK)
        with open(path, "rb") as file:
            assert os.path.samestat(os.fstat(file.fileno()), facts[0])
            assert len(file.read()) == facts[0].st_size
            served += os.readlink(f"/proc/self/fd/{file.fileno()}").startswith(level)
    print("served", served, flush=True)
"""


def test_after_the_first_epoch_the_source_is_not_read(slow: Path, level: Path) -> None:
    """Neither for bytes nor for names, which the kernel does not cache here."""
    paths = [path for path in files(slow) if not path.is_symlink()]
    program = [sys.executable, "-c", READER, level, *paths]
    with Conversation(arguments(slow, [level], program)) as run:
        served = 0
        while served < len(paths):
            run.tell("again")
            served = int(run.wait_for("served"))
        earlier, before = counted(slow), counted(slow)
        for _ in range(3):
            run.tell("again")
            assert int(run.wait_for("served")) == len(paths)
        after = counted(slow)
        # To look at the counters is a question too.
        looking = {name: before[name] - earlier[name] for name in before}
        assert {name: after[name] - before[name] for name in after} == looking
        run.end()
