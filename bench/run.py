#!/usr/bin/env python3
"""Speed and memory of belady, beside their targets.

    make bench                                   # builds what it measures
    make bench TORCH=path/to/python-with-torch   # and compares with torch.randperm
    python3 bench/run.py --only simulate --runs 5

Every line is a command that anyone can run; `--commands` prints them. A command runs
several times. Its best wall time is judged, since a busy neighbour can only add to it;
the median says how busy the machine was. Memory is the largest resident set that the
kernel saw. Targets are for two cores. Nothing here fails because of a slow machine:
the verdict is printed, the exit status says only whether the commands ran.
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GIB = 1 << 30

# 256 nodes of 4 ranks, 32 samples a rank.
MANY_RANKS = (
    "--set cluster.nodes=256 --set cluster.ranks_per_node=4 "
    "--set training.batch=32768 --set training.epochs=90"
)


class Case:
    """A command with its targets, and how many samples it simulates."""

    def __init__(self, name, command, seconds=None, rss=None, samples=0, heavy=False):
        self.name, self.command = name, command
        self.seconds, self.rss, self.samples, self.heavy = seconds, rss, samples, heavy


SIMULATE = [
    # Twelve of the fourteen policies can run it: LBANN's two need it all in memory.
    Case("hdmlp-4, all policies", "simulate scenarios/hdmlp-4.toml", 15, None, 12 * 5 * 400_000),
]
for policy in ("belady", "nopfs"):
    SIMULATE.append(
        Case(
            f"ImageNet-22k, {policy}",
            f"simulate scenarios/nopfs-imagenet-22k.toml --policy {policy}",
            30,
            GIB,
            5 * 14_197_122,
            heavy=True,
        )
    )
for policy in ("belady", "nopfs"):
    SIMULATE.append(
        Case(
            f"1,024 ranks, 90 epochs, {policy}",
            f"simulate scenarios/nopfs-imagenet-1k.toml --policy {policy} {MANY_RANKS}",
            60,
            2 * GIB,
            90 * 1_281_167,
            heavy=True,
        )
    )

ANALYZE = [
    Case(f"analyze, {label} samples", f"analyze --samples {samples} --workers 1024 --epochs 90")
    for label, samples in (("a million", 10**6), ("a billion", 10**9))
]


def target_directory():
    metadata = ["cargo", "metadata", "--no-deps", "--format-version=1"]
    return pathlib.Path(json.loads(subprocess.check_output(metadata, cwd=ROOT))["target_directory"])


def measure(command):
    """Wall seconds, CPU seconds and peak resident bytes of one run."""
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            sys.exit(f"{shlex.join(map(str, command))} failed:\n{output.read().decode()}")
    # Linux counts kilobytes, macOS bytes.
    rss = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return wall, usage.ru_utime + usage.ru_stime, rss


def verdict(value, target, text):
    if target is None:
        return ""
    return f"{'ok' if value <= target else 'MISSED'} ({text(target)})"


def mib(size):
    return f"{size / (1 << 20):,.0f} MiB"


def whole_seconds(seconds):
    return f"{seconds:g} s"


def run_cases(title, cases, binary, runs):
    print(f"\n{title}")
    row = "  {:<32} {:>4} {:>8} {:>8} {:>8} {:>10} {:>10}  {}"
    print(row.format("", "runs", "best", "median", "CPU", "peak RSS", "samples/s", "target"))
    peaks = []
    for case in cases:
        count = max(1, runs // 3) if case.heavy else runs
        results = [measure([binary, *shlex.split(case.command)]) for _ in range(count)]
        walls = [wall for wall, _, _ in results]
        best, rss = min(walls), max(rss for _, _, rss in results)
        peaks.append(rss)
        judged = [
            verdict(best, case.seconds, whole_seconds),
            verdict(rss, case.rss, mib),
        ]
        speed = f"{case.samples / best / 1e6:.1f} M" if case.samples else ""
        print(
            row.format(
                case.name,
                count,
                f"{best:.2f} s",
                f"{statistics.median(walls):.2f} s",
                f"{min(cpu for _, cpu, _ in results):.2f} s",
                mib(rss),
                speed,
                ", ".join(filter(None, judged)),
            ).rstrip(),
            flush=True,
        )
    return peaks


def simulate(binary, runs):
    run_cases("Simulator", SIMULATE, binary, runs)


def analyze(binary, runs):
    small, large = run_cases("Access pattern", ANALYZE, binary, runs)
    ratio = large / small
    judged = verdict(ratio, 1.1, lambda most: f"constant: at most {most}")
    print(f"  memory, a billion samples over a million: {ratio:.2f} {judged}")


def lookups(target):
    print("\nIndex-free permutation, one core (millions of lookups a second; target: above 30)")
    binary = target / "release" / "examples" / "shuffle_speed"
    figures = json.loads(subprocess.check_output([binary, "--json"]))
    rates = {}
    for name, nanoseconds in figures.items():
        if name.startswith("permutation "):
            _, direction, samples = name.split()
            rates.setdefault(int(samples), {})[direction] = 1e3 / nanoseconds
    for samples, by_direction in rates.items():
        slowest = min(by_direction.values())
        shown = "  ".join(f"{direction} {rate:6.1f}" for direction, rate in by_direction.items())
        print(f"  {samples:>17,} samples  {shown}  {'ok' if slowest > 30 else 'MISSED'}")


def shuffle(python):
    print(
        "\nTorch-exact shuffle against torch.randperm, one thread each (ratio above 1: ours is faster)"
    )
    if python is None:
        print("  skipped: needs a Python that has torch; make bench TORCH=path/to/python")
        return
    script = subprocess.run(
        [python, ROOT / "scripts" / "bench_randperm.py"], cwd=ROOT, capture_output=True, text=True
    )
    for line in (script.stdout + script.stderr).splitlines():
        print(f"  {line}")
    print("  ok (at least as fast)" if script.returncode == 0 else "  MISSED (at least as fast)")


def main():
    sections = ["simulate", "analyze", "lookups", "shuffle"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--runs", type=int, default=3, help="runs of each command; a third for heavy ones"
    )
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has torch")
    parser.add_argument(
        "--only", action="append", choices=sections, help="measure only this; repeatable"
    )
    parser.add_argument("--commands", action="store_true", help="print the commands and stop")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error("--runs must be at least 1")
    if args.commands:
        for case in SIMULATE + ANALYZE:
            print("target/release/belady", case.command)
        print("target/release/examples/shuffle_speed")
        print("PYTHON_WITH_TORCH scripts/bench_randperm.py")
        return
    chosen = args.only or sections
    target = target_directory()
    binary = target / "release" / "belady"
    if not binary.exists():
        sys.exit(f"{binary} does not exist: run `make build` first")
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"{cores} cores, load {load:.1f} before the first run")
    if load > cores / 2:
        print("Other programs are running: wall times will be too long. CPU time says more.")
    if "simulate" in chosen:
        simulate(binary, args.runs)
    if "analyze" in chosen:
        analyze(binary, args.runs)
    if "lookups" in chosen:
        lookups(target)
    if "shuffle" in chosen:
        shuffle(args.torch)


if __name__ == "__main__":
    main()
