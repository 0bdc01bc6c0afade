#!/usr/bin/env python3
"""What the engine does on one machine, beside its peers and its targets.

    make bench                                    # builds what it measures, then all of it
    python3 bench/engine.py --only slow --runs 3  # one section
    python3 bench/engine.py --write-docs          # and puts the tables into docs/performance.md

Each section runs peer and us in turns, several times, and prints a table in markdown with the
commands that made it. It wants a quiet machine, and root for three things: FUSE, emptying the
page cache, and a memory cgroup. A target that is missed is printed as such and is no failure;
the exit status says only whether the commands ran. All sections should take about half an hour.
Tables go to standard output, progress to standard error.
"""

import argparse
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import boundaries, link, local, process, promises, slow, soak, table  # noqa: E402
from harness.context import Context  # noqa: E402

DOCUMENT = process.ROOT / "docs" / "performance.md"
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


class Results:
    """What became of the sections, told at the end."""

    def __init__(self):
        self.met, self.missed, self.failed = 0, [], []

    def add(self, name, section):
        met, missed = section.verdicts()
        self.met += met
        self.missed += [f"{name}: {what}" for what in missed]

    def text(self):
        lines = [f"{self.met} targets met, {len(self.missed)} missed, {len(self.failed)} sections not measured"]
        lines += [f"  missed        {what}" for what in self.missed]
        lines += [f"  not measured  {what}" for what in self.failed]
        return "\n".join(lines)


def measure(name, target, runs, results):
    """The section's text, or none if it could not be measured."""
    context = Context(target, runs)
    start = time.monotonic()
    try:
        section = SECTIONS[name](context)
    except (process.CommandFailed, OSError) as error:
        results.failed.append(f"{name}: {error}")
    except KeyError as error:
        results.failed.append(f"{name}: a command's JSON has no key {error}")
    else:
        results.add(name, section)
        process.say(f"{name}: {time.monotonic() - start:.0f} s")
        commands = "\n".join(context.commands.seen)
        made = f"`python3 bench/engine.py --only {name} --runs {runs}` on {process.machine()}:"
        return f"{made}\n\n{section.markdown()}\n\n```sh\n{commands}\n```"
    process.say(f"not measured: {results.failed[-1]}")
    return None


def stop(*_):
    """Told to end: leave by way of everything that cleans up."""
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", action="append", choices=SECTIONS, help="measure only this; repeatable")
    parser.add_argument("--runs", type=int, default=3, help="runs of each command")
    parser.add_argument("--write-docs", action="store_true", help="write the tables into docs/performance.md")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error("--runs must be at least 1")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if load > cores / 4:
        process.say(f"Load {load:.1f} on {cores} cores: other programs are running, and the figures will suffer.")
    signal.signal(signal.SIGTERM, stop)
    target, results, start = process.target_directory(), Results(), time.monotonic()
    chosen = args.only or list(SECTIONS)
    for at, name in enumerate(chosen, 1):
        process.say(f"[{at}/{len(chosen)}] {name}, after {(time.monotonic() - start) / 60:.1f} min")
        text = measure(name, target, args.runs, results)
        if text is None:
            continue
        print(f"\n## {name}\n\n{text}", flush=True)
        if args.write_docs:
            DOCUMENT.write_text(table.insert(DOCUMENT.read_text(), name, text))
    print(f"\n{results.text()}\nin {(time.monotonic() - start) / 60:.1f} min", flush=True)
    if results.failed:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing is left running or mounted")
