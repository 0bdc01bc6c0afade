#!/usr/bin/env python3
"""Four nodes as one cache: network namespaces with shaped links, and one slow source for all.

    make bench-cluster                            # builds what it measures, then all of it
    python3 bench/cluster.py --only cluster       # one section
    python3 bench/cluster.py --write-docs         # and puts the tables into bench/METHODS.md

It needs root (namespaces, tc, FUSE), `ip` and `tc`, and for its baselines a Python with torch; for MPI
Open MPI and a `belady` that was built with it. Tables go to standard output, progress to standard
error; a missed target is printed and is no failure.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import cluster
from harness.context import Context
from harness.sections import Harness

SECTIONS = {"cluster": cluster.sixth, "cluster-hdmlp": cluster.hdmlp}

if __name__ == "__main__":
    Harness("cluster.py", __doc__.split("\n\n")[0], SECTIONS, Context).main()
