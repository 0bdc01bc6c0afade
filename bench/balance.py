#!/usr/bin/env python3
"""One engine for eight ranks of a node: balance of the policies, and what the shared engine costs and saves.

    make bench                                        # builds and installs what it measures
    python3 bench/balance.py --only balance --runs 3  # one section
    python3 bench/balance.py --write-docs             # and puts the tables into docs/balance.md

Runs are in turns, so that a busy neighbour meets all. It needs a quiet machine, and FUSE. A missed target is
printed and is no failure; the exit status says only whether the commands ran.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import balance, node, shift, transforms
from harness.process import ROOT
from harness.python_context import PythonContext
from harness.sections import Harness

SECTIONS = {
    "balance": balance.balance,
    "transforms": transforms.transforms,
    "ablation": balance.ablation,
    "shift": shift.shift,
    "hand-over": node.hand_over,
    "node": node.node,
    "two-jobs": node.two_jobs,
}

if __name__ == "__main__":
    Harness(
        "balance.py",
        __doc__.split("\n\n")[0],
        SECTIONS,
        PythonContext,
        document=ROOT / "docs" / "balance.md",
    ).main()
