#!/usr/bin/env python3
"""How fast samples come from a peer over loopback, beside iperf3.

    make bench                                    # builds what it measures, then all of it
    python3 bench/network.py --runs 5             # this alone
    python3 bench/network.py --write-docs         # and puts the table into bench/METHODS.md

iperf3 and belady run in turns, several times, over one connection each. It needs a quiet machine of two
cores or more: both ends run at once. A missed target is printed and is no failure.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import network
from harness.context import Context
from harness.sections import Harness

if __name__ == "__main__":
    Harness("network.py", __doc__.split("\n\n")[0], {"network": network.network}, Context).main()
