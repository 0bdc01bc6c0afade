#!/usr/bin/env python3
"""What the engine does on one machine, beside its peers and its targets.

    make bench                                    # builds what it measures, then all of it
    python3 bench/engine.py --only slow --runs 3  # one section
    python3 bench/engine.py --write-docs          # and puts the tables into docs/performance.md

Each section runs peer and us in turns, several times, and prints a table in markdown with the
commands that made it. It wants a quiet machine, and root for three things: FUSE, emptying the
page cache, and a memory cgroup. A target that is missed is printed as such and is no failure;
the exit status says only whether the commands ran.
"""

import argparse
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import link, local, process, promises, slow, table  # noqa: E402
from harness.context import Context  # noqa: E402

DOCUMENT = process.ROOT / "docs" / "performance.md"
SECTIONS = {
    "ram": local.ram,
    "warm": local.warm,
    "cold": local.cold,
    "slowfs": link.slowfs,
    "slow": slow.slow,
    "boundaries": promises.boundaries,
    "first-batch": promises.first_batch,
    "memory": promises.memory,
    "soak": promises.soak,
}


def measure(name, target, runs):
    """The section's text, or none if a command of it failed."""
    context = Context(target, runs)
    start = time.monotonic()
    try:
        section = SECTIONS[name](context)
    except process.CommandFailed as error:
        process.say(f"{name}: {error}")
        return None
    except KeyError as error:
        process.say(f"{name}: a command's JSON has no key {error}")
        return None
    process.say(f"{name}: {time.monotonic() - start:.0f} s")
    commands = "\n".join(context.commands.seen)
    made = f"`python3 bench/engine.py --only {name} --runs {runs}` on {process.machine()}:"
    return f"{made}\n\n{section.markdown()}\n\n```sh\n{commands}\n```"


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
    target, failed = process.target_directory(), []
    for name in args.only or SECTIONS:
        text = measure(name, target, args.runs)
        if text is None:
            failed.append(name)
            continue
        print(f"\n## {name}\n\n{text}", flush=True)
        if args.write_docs:
            DOCUMENT.write_text(table.insert(DOCUMENT.read_text(), name, text))
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
