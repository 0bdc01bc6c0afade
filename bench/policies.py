#!/usr/bin/env python3
"""Policies beside the bound: source bytes, time and straggling of every class of job and every shipped scenario.

    cargo build --release -p belady
    python3 bench/policies.py                    # prints the tables
    python3 bench/policies.py --only weighted    # one scenario; repeatable
    python3 bench/policies.py --write-docs       # all, into bench/POLICIES.md

Everything is simulated, so figures do not depend on the machine. The jobs under scenarios/classes run
with three sizes of the cache and two speeds of the source; scenarios/*.toml run as they are, those of
fourteen million samples for three epochs. Beside each figure of a policy stands the bound's. A line
says where belady misses what it promises: more than 0.5 % of the dataset beyond the bound in source
bytes, more than 3 % beyond it in time, or more than 0.5 % behind another policy that keeps the order in source
bytes, time or straggling. Straggling is compared with policies that are not slower: one that lets all ranks
wait alike is in balance. The count of imbalanced iterations is shown and not judged: it counts waits that
cost no time.
"""

import argparse
import dataclasses
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import process, table

DOCUMENT = process.ROOT / "bench" / "POLICIES.md"
POLICIES = ("belady", "lobster", "nopfs", "lru", "monarch")
OURS = "belady"

BYTES_BEYOND, TIME_BEYOND, BEHIND = 0.005, 0.03, 0.005

# The room of all nodes together as a share of the dataset.
ROOM = (0.3, 0.6, 0.9)
# The source's rate over that at which the ranks take new bytes: it binds every epoch, or the first alone.
SOURCES = (("source-bound", 0.05), ("compute-bound", 0.9))
# What one node gets from the source alone, of what all get together: about what the papers measured.
ALONE = 0.45
# More samples than this run for three epochs: later ones are like the third.
LARGE = 10_000_000


@dataclasses.dataclass
class Job:
    """One job, all policies on it."""

    scenario: str
    room: str
    binds: str
    # S.
    dataset: float
    outcomes: dict

    @property
    def name(self):
        return ", ".join(filter(None, (self.scenario, self.room, self.binds)))

    @property
    def bound(self):
        return next(iter(self.outcomes.values()))

    def others(self):
        return {
            name: it for name, it in self.outcomes.items() if name != OURS and it["keeps_order"]
        }


def later(by_epoch):
    """The mean of the epochs after the first."""
    return sum(by_epoch[1:]) / max(len(by_epoch) - 1, 1)


@dataclasses.dataclass(frozen=True)
class Measure:
    """A figure of an outcome, its bound where there is one, and how it is told."""

    title: str
    of: object
    bound: object
    text: object


def share_of(key):
    return lambda job, outcome: later(outcome[key]) / job.dataset


def straggling(key):
    return lambda job, outcome: outcome[key] / outcome["bound_seconds"]


MEASURES = (
    Measure(
        "Source bytes an epoch after the first, of the dataset",
        share_of("source_bytes_per_epoch"),
        share_of("bound_source_bytes_per_epoch"),
        lambda value: f"{100 * value:.2f} %",
    ),
    Measure(
        "Time, of the bound's",
        lambda _, it: it["seconds"] / it["bound_seconds"],
        None,
        lambda value: f"{value:.3f}",
    ),
    Measure(
        "Straggling, of the bound's time",
        straggling("straggling_seconds"),
        straggling("straggling_bound_seconds"),
        lambda value: f"{100 * value:.2f} %",
    ),
    Measure(
        "Imbalanced iterations",
        lambda _, it: it["imbalanced_iterations"],
        None,
        lambda value: f"{100 * value:.1f} %",
    ),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    classes = sorted((process.ROOT / "scenarios" / "classes").glob("*.toml"))
    shipped = sorted((process.ROOT / "scenarios").glob("*.toml"))
    names = [path.stem for path in (*classes, *shipped)]
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="SCENARIO",
        help="run only this; repeatable",
    )
    parser.add_argument(
        "--write-docs", action="store_true", help=f"write the tables into bench/{DOCUMENT.name}"
    )
    args = parser.parse_args()
    if args.write_docs and args.only:
        parser.error("--write-docs writes all scenarios; leave --only out")
    commands, sections = process.Commands(), {}
    try:
        for title, paths, runs in (
            ("classes", classes, class_runs),
            ("shipped", shipped, shipped_runs),
        ):
            chosen = [path for path in paths if not args.only or path.stem in args.only]
            jobs = [job for path in chosen for job in run(commands, path, runs(path))]
            if jobs:
                sections[title] = jobs
    except process.CommandFailed as error:
        sys.exit(str(error))
    text = markdown(sections, commands)
    print(text)
    if args.write_docs:
        DOCUMENT.write_text(table.insert(DOCUMENT.read_text(), "policies", text))


def read(path):
    scenario = tomllib.loads(path.read_text())
    dataset = scenario["dataset"]
    total = (
        parse(dataset["total"])
        if "total" in dataset
        else dataset["samples"] * parse(dataset["mean"])
    )
    return scenario, total


def parse(quantity):
    """Bytes, or bytes a second."""
    if isinstance(quantity, int):
        return quantity
    number, unit = quantity.replace("/s", "").replace("_", "").replace(",", "").split()
    power = " KMGTP".index(unit[0]) if unit != "B" else 0
    return float(number) * (1024 if "i" in unit else 1000) ** power


def class_runs(path):
    """The sweeps of a class: room and source."""
    scenario, total = read(path)
    cluster = scenario["cluster"]
    ranks = cluster["nodes"] * cluster["ranks_per_node"]
    # Under `whole` all ranks take the same bytes.
    takers = 1 if scenario["training"].get("scheme") == "whole" else ranks
    capacity = cluster["tier"][1]["capacity"]
    for share in ROOM:
        room = f"cluster.tier.ram.capacity={rooms(capacity, share * total, cluster['nodes'])}"
        for binds, factor in SOURCES:
            rate = round(factor * takers * parse(cluster["compute"]))
            curve = f'[[1, "{round(ALONE * rate)} B/s"], [{cluster["nodes"]}, "{rate} B/s"]]'
            source = f"cluster.source.throughput={curve}"
            yield f"{100 * share:.0f} %", binds, ["--set", room, "--set", source]


def rooms(capacity, total, nodes):
    """Capacities in the proportion of those given, which sum to the total over all nodes."""
    if not isinstance(capacity, list):
        return round(total / nodes)
    parts = [parse(one) for one in capacity]
    return [round(total * part / sum(parts)) for part in parts]


def shipped_runs(path):
    scenario, _ = read(path)
    large = scenario["dataset"]["samples"] > LARGE
    yield "", "", ["--set", "training.epochs=3"] if large else []


def run(commands, path, runs):
    belady = process.target_directory() / "release" / "belady"
    policies = [part for policy in POLICIES for part in ("--policy", policy)]
    for room, binds, sets in runs:
        finished = process.run(commands, [belady, "simulate", path, *policies, *sets, "--json"])
        outcomes = {it["policy"]: it for it in finished.json if it["supported"]}
        yield Job(path.stem, room, binds, read(path)[1], outcomes)


def flags(job):
    """What belady misses, as (by how much, what)."""
    ours = job.outcomes[OURS]
    bytes_, time, lost, _ = MEASURES
    beyond = bytes_.of(job, ours) - bytes_.bound(job, ours)
    if beyond > BYTES_BEYOND:
        yield beyond, f"{100 * beyond:.2f} % of the dataset beyond the bound in source bytes"
    slower = time.of(job, ours) - 1
    if slower > TIME_BEYOND:
        yield slower, f"{100 * slower:.1f} % beyond the bound in time"
    for name, other in job.others().items():
        behind = [
            (bytes_.of(job, ours) - bytes_.of(job, other), "of the dataset more source bytes than"),
            (ours["seconds"] / other["seconds"] - 1, "slower than"),
        ]
        # A policy that lets all ranks wait alike is in balance and slow.
        if other["seconds"] <= (1 + BEHIND) * ours["seconds"]:
            behind.append(
                (
                    lost.of(job, ours) - lost.of(job, other),
                    "of the bound's time more straggling than",
                )
            )
        for much, what in behind:
            if much > BEHIND:
                yield much, f"{100 * much:.1f} % {what} {name}"


def markdown(sections, commands):
    missed = {
        job.name: sorted(flags(job), reverse=True) for jobs in sections.values() for job in jobs
    }
    lines = [table.heading("python3 bench/policies.py", 1), "", summary(missed), ""]
    for name, found in sorted(missed.items(), key=lambda item: item[1], reverse=True):
        if found:
            lines.append(f"- {name}: {'; '.join(what for _, what in found)}")
    for title, jobs in sections.items():
        for measure in MEASURES:
            lines += ["", f"## {measure.title}: {title}", "", rows(measure, jobs).markdown()]
    return "\n".join([*lines, "", "```sh", *commands.seen, "```"])


def summary(missed):
    found = [(much, f"{name}, {what}") for name, flags in missed.items() for much, what in flags]
    if not found:
        return f"Of {len(missed)} jobs belady keeps what it promises in all."
    in_jobs = sum(bool(flags) for flags in missed.values())
    return (
        f"Of {len(missed)} jobs belady misses something in {in_jobs}. The worst: {max(found)[1]}."
    )


def rows(measure, jobs):
    swept = any(job.room for job in jobs)
    head = [
        "job",
        *(["cache", "binds"] if swept else []),
        *(["bound"] if measure.bound else []),
        *POLICIES,
    ]
    section = table.Section(head)
    for job in jobs:
        cells = [job.scenario, *([job.room, job.binds] if swept else [])]
        if measure.bound:
            cells.append(measure.text(measure.bound(job, job.bound)))
        of = (job.outcomes.get(policy) for policy in POLICIES)
        cells += [measure.text(measure.of(job, outcome)) if outcome else "–" for outcome in of]
        section.row(*cells)
    return section


if __name__ == "__main__":
    main()
