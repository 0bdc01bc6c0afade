#!/usr/bin/env python3
"""What the engine does on one machine, beside its baselines and its targets.

    make bench                                    # builds what it measures, then all of it
    python3 bench/engine.py --only slow --runs 3  # one section
    python3 bench/engine.py --write-docs          # and puts the tables into bench/METHODS.md

Each section runs the baseline and belady in turns, several times, and prints a table in markdown with the
commands that made it. It needs a quiet machine, and root for three things: FUSE, emptying the
page cache, and a memory cgroup. A missed target is printed and is no failure;
the exit status says only whether the commands ran. All sections should take about forty minutes.
Tables go to standard output, progress to standard error.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import boundaries, link, local, promises, slow, soak
from harness.context import Context
from harness.sections import Harness

SECTIONS = {
    "ram": local.ram,
    "warm": local.warm,
    "cold": local.cold,
    "slowfs": link.slowfs,
    "slow": slow.slow,
    "boundaries": boundaries.boundaries,
    "first-batch": promises.first_batch,
    "memory": promises.memory,
    "soak": soak.soak,
}

if __name__ == "__main__":
    Harness("engine.py", __doc__.split("\n\n")[0], SECTIONS, Context).main()
