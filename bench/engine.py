#!/usr/bin/env python3
"""What the engine does on one machine, beside its peers and its targets.

    make bench                                    # builds what it measures, then all of it
    python3 bench/engine.py --only slow --runs 3  # one section
    python3 bench/engine.py --write-docs          # and puts the tables into docs/performance.md

Each section runs peer and us in turns, several times, and prints a table in markdown with the
commands that made it. It wants a quiet machine, and root for three things: FUSE, emptying the
page cache, and a memory cgroup. A target that is missed is printed as such and is no failure;
the exit status says only whether the commands ran. All sections should take about forty minutes.
Tables go to standard output, progress to standard error.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import boundaries, link, local, promises, slow, soak  # noqa: E402
from harness.context import Context  # noqa: E402
from harness.sections import Harness  # noqa: E402

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
