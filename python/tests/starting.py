"""Starts the processes of a job, as torchrun and mpirun do."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

#: Every script begins like this: the output of a rank consists of whole lines.
PROLOGUE = """
import functools, os, sys
print = functools.partial(print, flush=True)
"""
LIMIT = 240


def free_port() -> int:
    """Returns a free port that the system does not assign by itself."""
    while True:
        port = random.randint(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(**more: str) -> dict[str, str]:
    """That of a process on a machine with few cores."""
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | more


def started(command: list[Any], **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**more),
        start_new_session=True,
    )


def finished(command: list[Any], *, fails: bool = False, **more: str) -> str:
    """Returns the output of a command that has to succeed, or to fail if it `fails`."""
    process = started(command, **more)
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # torchrun's children too
        output, _ = process.communicate()
        raise AssertionError(f"it hangs after this output: {output}") from None
    assert (process.returncode != 0) == fails, output
    return output


def torchrun(folder: Path, script: str, *, ranks: int, fails: bool = False, **more: str) -> str:
    """Runs a script on several ranks of this machine, with torchrun; returns their output."""
    file = folder / "rank.py"
    file.write_text(script)
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node", ranks, file),
    ]
    return finished(command, fails=fails, **more)


def mpirun(folder: Path, script: str, *, ranks: int, fails: bool = False, **more: str) -> str:
    """The same with mpirun."""
    file = folder / "rank.py"
    file.write_text(script)
    command = [
        *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
        *("-n", ranks, sys.executable, file),
    ]
    return finished(command, fails=fails, **more)
