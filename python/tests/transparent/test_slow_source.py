"""A slow file system that counts what it is asked for: after the first epoch, nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from transparent.inside import files
from transparent.launching import Conversation, arguments, inside, until

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
        pytest.skip("there is no /dev/fuse here")
    mount = tmp_path / "slow"
    mount.mkdir()
    process = subprocess.Popen([command, tree, mount, "--throughput", "1:200MB/s"], stderr=subprocess.PIPE)
    try:
        until(lambda: process.poll() is not None or mount.is_mount())
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.skip(f"FUSE does not work here: {process.stderr.read().decode()}")
        yield mount
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def counted(mount: Path) -> dict[str, int]:
    made: dict[str, int] = json.loads((mount / ".slowfs-stats").read_text())
    return made


def test_after_the_first_epoch_the_source_is_asked_for_nothing(slow: Path, level: Path, tmp_path: Path) -> None:
    program = inside("Python os.stat, os.access, then open", slow, tmp_path / "scratch")
    with Conversation(arguments(slow, [level], program)) as run:
        first = run.hears("epoch")
        run.wait_until_served(files(slow), level)
        before = counted(slow)
        for _ in range(3):
            run.tell("again")
            assert run.hears("epoch") == first
        after = counted(slow)
        run.end()
    asked = {name: after[name] - before[name] for name in after}
    # The program lists its files anew in each epoch.
    assert asked["open"] == asked["read"] == asked["bytes"] == asked["lookup"] == asked["getattr"] == 0
