#!/usr/bin/env python3
"""Fills the tables of docs/validation.md from runs of `belady simulate`.

    cargo build --release
    python3 scripts/validate.py [--belady target/release/belady] [--keep DIR] [TABLE ...]

Each table of the document stands between two comments, `<!-- table NAME -->` and
`<!-- end -->`; what is between them is written anew. TABLE names some of them. Runs
are kept under DIR (a temporary one by default), so that a second call with the same
DIR only formats.
"""

import argparse
import hashlib
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "validation.md"
TABLES = {}


class Runs:
    """Calls `belady simulate --json` once for each set of arguments."""

    def __init__(self, belady, keep):
        self.belady = belady
        self.keep = pathlib.Path(keep)
        self.keep.mkdir(parents=True, exist_ok=True)

    def __call__(self, scenario, *sets, policies=(), sweeps=()):
        args = [f"scenarios/{scenario}.toml"]
        for flag, values in (("--policy", policies), ("--set", sets), ("--sweep", sweeps)):
            for value in values:
                args += [flag, value]
        name = scenario + "-" + hashlib.sha256("\0".join(args).encode()).hexdigest()[:12]
        path = self.keep / f"{name}.json"
        if not path.exists():
            print("belady simulate " + " ".join(args), file=sys.stderr, flush=True)
            done = subprocess.run(
                [self.belady, "simulate", *args, "--json"], cwd=ROOT, stdout=subprocess.PIPE, check=True
            )
            partial = path.with_suffix(".partial")
            partial.write_bytes(done.stdout)
            partial.rename(path)
        return json.loads(path.read_text())


def table(name):
    def register(make):
        TABLES[name] = make
        return make

    return register


def by_policy(outcomes):
    return {outcome["policy"]: outcome for outcome in outcomes}


