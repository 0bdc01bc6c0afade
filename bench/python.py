#!/usr/bin/env python3
"""What the Python package does on one machine, beside other loaders and its targets.

    make bench                                        # builds and installs what it measures
    python3 bench/python.py --only python-raw --runs 3  # one section
    python3 bench/python.py --write-docs              # and puts the tables into bench/METHODS.md

Loaders run in fresh processes, in turns, in an environment of their own (`make
bench-environment`). A loader that cannot be installed is left out and named. It needs a quiet
machine, and root for FUSE. A missed target is printed and is no failure; the exit
status says only whether the commands ran.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import python_memory, python_raw, python_start, python_train
from harness.python_context import PythonContext
from harness.sections import Harness

SECTIONS = {
    "python-raw": python_raw.raw,
    "python-start": python_start.start,
    "python-memory": python_memory.memory,
    "python-train": python_train.train,
}

if __name__ == "__main__":
    Harness("python.py", __doc__.split("\n\n")[0], SECTIONS, PythonContext).main()
