#!/usr/bin/env python3
"""Our torch-exact shuffle beside torch.randperm, one thread each, in one run.

    python scripts/bench_randperm.py      # with a Python that has torch

Prints nanoseconds an entry and the ratio (above 1: ours is faster); exits with 1
if ours is slower anywhere. Rounds alternate and the best of each counts, so that a
busy neighbour hits both.
"""

import json
import pathlib
import subprocess
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = [50_000, 1_281_167, 14_197_122]
ROUNDS = 3


def theirs(n, dtype):
    g = torch.Generator()
    g.manual_seed(42)
    best = float("inf")
    for _ in range(3 if n > 10**7 else 10):
        start = time.perf_counter()
        torch.randperm(n, generator=g, dtype=dtype)
        best = min(best, (time.perf_counter() - start) * 1e9 / n)
    return best


def main():
    torch.set_num_threads(1)
    cargo = [
        "cargo",
        "build",
        "--quiet",
        "--release",
        "-p",
        "belady-control",
        "--example",
        "shuffle_speed",
    ]
    subprocess.run(cargo, cwd=ROOT, check=True)
    metadata = ["cargo", "metadata", "--no-deps", "--format-version=1"]
    target = json.loads(subprocess.check_output(metadata, cwd=ROOT))["target_directory"]
    binary = f"{target}/release/examples/shuffle_speed"

    best = {}
    for _ in range(ROUNDS):
        ours = json.loads(subprocess.check_output([binary, "--json", "--randperm"]))
        for n in SIZES:
            figures = [ours[f"randperm {n}"], theirs(n, torch.int64), theirs(n, torch.int32)]
            best[n] = [min(pair) for pair in zip(best.get(n, figures), figures)]

    print(
        f"{'n':>12} {'belady ns':>10} {'torch ns':>10} {'ratio':>7} {'torch int32 ns':>15} {'ratio':>7}"
    )
    for n, (own, wide, narrow) in best.items():
        print(
            f"{n:>12,} {own:>10.2f} {wide:>10.2f} {wide / own:>7.2f} {narrow:>15.2f} {narrow / own:>7.2f}"
        )
    slower = any(min(wide, narrow) < own for own, wide, narrow in best.values())
    sys.exit("torch is faster" if slower else 0)


if __name__ == "__main__":
    main()
