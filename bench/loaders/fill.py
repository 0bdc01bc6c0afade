"""Reads all files below a folder, and waits until a level of `belady run` has copies of them.

    belady run --data FOLDER --cache LEVEL:10GB -- python fill.py FOLDER LEVEL FILES

Its end means that they are there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# Nothing that is measured takes a tenth of it to copy.
PATIENCE_SECONDS = 120


def main() -> None:
    folder, level, wanted = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        # Again each time: a request may be lost where very many come at once.
        for directory, _, names in os.walk(folder):
            for name in names:
                Path(directory, name).read_bytes()
        made = sum(len(names) for files in level.glob("*/files") for _, _, names in os.walk(files))
        if made >= wanted:
            return
        if time.monotonic() > end:
            sys.exit(f"{level} has {made} copies of {wanted} after {PATIENCE_SECONDS} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
