"""Runs a program, epoch by epoch, as its input says.

    python -m transparent.inside NAME DATA SCRATCH

It prints `epoch DIGEST` after each epoch, and then waits for a line: `again` for one more epoch,
`served LEVEL LIST` to wait until the files of that list are handed out from that directory (it prints
`served` then), or the end. Words are separated by tabs.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from transparent.inside import PROGRAMS, digest


def main() -> None:
    name, data, scratch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    epoch(name, data, scratch)
    for line in sys.stdin:
        match line.rstrip("\n").split("\t"):
            case ["again"]:
                epoch(name, data, scratch)
            case ["served", level, names]:
                for path in Path(names).read_text().splitlines():
                    wait_until_served(path, level)
                print("served", flush=True)
            case _:
                sys.exit(f"unknown line {line!r}")


def epoch(name: str, data: Path, scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    print("epoch", digest(PROGRAMS[name].read(data, scratch)), flush=True)


def wait_until_served(path: str, level: str) -> None:
    """Returns when opening the file gives a descriptor of its copy."""
    while True:
        descriptor = os.open(path, os.O_RDONLY)
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        os.close(descriptor)
        if place.startswith(level):
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
