#!/usr/bin/env python3
"""What `belady run` costs a program, and what it saves on a slow source, beside its targets.

    make bench                                              # builds what it measures, then all of it
    python3 bench/transparent.py --only transparent-calls   # one section
    python3 bench/transparent.py --write-docs               # and puts the tables into bench/METHODS.md

The same program runs with and without `belady run`, in turns, many times; medians are compared, and
what the same program without it gives beside itself says how far they can be trusted. It needs a quiet
machine, cc, and root for FUSE; instructions are counted where valgrind is installed, and torch is
measured where it is. A missed target is printed and is no failure.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import transparent_calls, transparent_programs, transparent_slow, transparent_torch
from harness.sections import Harness
from harness.transparent import TransparentContext

SECTIONS = {
    "transparent-calls": transparent_calls.calls,
    "transparent-programs": transparent_programs.programs,
    "transparent-start": transparent_programs.start,
    "transparent-slow": transparent_slow.slow,
    "transparent-torch": transparent_torch.torch,
}

if __name__ == "__main__":
    Harness("transparent.py", __doc__.split("\n\n")[0], SECTIONS, TransparentContext).main()
