#!/usr/bin/env python3
"""Source bytes of the engine beside the bound and the simulator, for classes of jobs, on one node and on four.

    cargo build --release -p belady -p slowfs -p baselines && make develop
    python3 bench/classes.py                    # prints the table
    python3 bench/classes.py --only weighted    # one class; repeatable
    python3 bench/classes.py --write-docs       # all, into bench/POLICIES.md

Each job runs for real: bench/loaders/in_step.py reads a small dataset behind slowfs, whose counter gives
the bytes; nodes are processes of this machine, each with a cache of its own. The bound is Bélády's MIN
over the orders that the ranks were given, computed here in the plainest way. Beside it stands what
`belady simulate` says of the same job. Figures do not depend on the speed of the machine.
"""

import argparse
import dataclasses
import functools
import json
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import context, process, table
from harness.mount import Mount
from loaders.in_step import EPOCHS

DOCUMENT = process.ROOT / "bench" / "POLICIES.md"
SAMPLES, MEAN = 4_000, 4_000
# The room of all nodes together, of the dataset.
ROOM = 0.6
NODES = (1, 4)
# Of the dataset, beyond the bound.
BEYOND = 0.005
SEED = 5
# The source is never what is waited for.
FAST = {1: 10_000}
# Batches, if all samples are the largest: two is the least that a loader takes.
STAGING = 3
THREADS = 4


@dataclasses.dataclass(frozen=True)
class Class:
    """A class of jobs."""

    name: str
    batch: int = 64
    # Of a normal distribution; what is not above 0 is drawn again.
    mean: int = MEAN
    stddev: int = MEAN // 10
    drop_last: bool = False
    order: str = "torch"
    # Fractions of the samples: those of a mixture's parts, or of classes that weigh alike.
    fractions: tuple = ()
    # Of four nodes, what each may hold beside the others.
    capacities: tuple = (1, 1, 1, 1)

    @property
    def counts(self):
        return [round(fraction * SAMPLES) for fraction in self.fractions]

    def weights(self):
        if self.order == "weighted":
            return [1 / count for count in self.counts for _ in range(count)]
        return [1.0] * len(self.fractions)

    def training(self):
        """The order as a scenario says it."""
        if self.order == "weighted":
            return f'weights = {{ kind = "classes", fractions = {list(self.fractions)} }}'
        parts = ", ".join(f"{{ fraction = {fraction} }}" for fraction in self.fractions)
        return f"part = [{parts}]" if parts else ""


CLASSES = (
    # Two batches an epoch leave out a quarter of it.
    Class("drop-last", batch=1_500, drop_last=True),
    Class("weighted", order="weighted", fractions=(0.1, 0.9)),
    Class("mixture", order="mixture", fractions=(0.1, 0.9)),
    # Most are drawn again, which leaves sizes of σ/μ = 0.7, as ImageNet's.
    Class("skewed", mean=MEAN // 4, stddev=MEAN * 9 // 8),
    Class("capacities", capacities=(8, 4, 2, 1)),
)


@dataclasses.dataclass
class Job:
    """A class on so many nodes, with what was found."""

    kind: Class
    nodes: int
    dataset: Path
    engine: float = 0.0
    bound: float = 0.0
    simulated: float = 0.0
    simulated_bound: float = 0.0

    @functools.cached_property
    def sizes(self):
        return [file.stat().st_size for file in self.dataset.rglob("*") if file.is_file()]

    @property
    def total(self):
        return sum(self.sizes)

    @property
    def staging(self):
        """Bytes of one node's ring, small beside its cache where batches are."""
        return STAGING * self.kind.batch // self.nodes * max(self.sizes)

    def rooms(self):
        """Bytes that each node may hold."""
        shares = self.kind.capacities[: self.nodes]
        return [int(ROOM * self.total * share / sum(shares)) for share in shares]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [kind.name for kind in CLASSES]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="CLASS", help="run only this; repeatable"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help=f"write the table into bench/{DOCUMENT.name}"
    )
    args = parser.parse_args()
    if args.write_docs and args.only:
        parser.error("--write-docs writes all classes; leave --only out")
    here = context.Context(process.target_directory(), 1)
    try:
        chosen = [kind for kind in CLASSES if not args.only or kind.name in args.only]
        jobs = [measured(here, kind, nodes) for kind in chosen for nodes in NODES]
    except process.CommandFailed as error:
        sys.exit(str(error))
    text = markdown(jobs)
    print(text)
    if args.write_docs:
        DOCUMENT.write_text(table.insert(DOCUMENT.read_text(), "classes", text))


def measured(here, kind, nodes):
    job = Job(kind, nodes, dataset(here, kind))
    found = engine(here, job)
    sizes = {int(number): size for number, size in found["sizes"].items()}
    least = minimum(found["epochs"], sizes, sum(job.rooms()))
    # Nothing less than this can be read in the first epoch, so all else is of the later ones; the counter
    # of the whole run does not depend on what was read ahead at the end of an epoch.
    first = least[0]
    job.engine = (found["source"][-1] - first) / (EPOCHS - 1) / job.total
    job.bound = (sum(least) - first) / (EPOCHS - 1) / job.total
    told = simulate(here, job)
    job.simulated, job.simulated_bound = (
        sum(told[key][1:]) / (EPOCHS - 1) / job.total
        for key in ("source_bytes_per_epoch", "bound_source_bytes_per_epoch")
    )
    report(job, found, least, told)
    return job


def dataset(here, kind):
    """Its folder; that of a mixture has one for each part."""
    if kind.order != "mixture":
        return files(here, kind, SAMPLES)
    folder = here.folder / "classes-mixture"
    shutil.rmtree(folder, ignore_errors=True)
    for part, count in enumerate(kind.counts):
        # What is made lies beside a file that says how: in one folder with it would be a sample.
        (folder / str(part)).mkdir(parents=True)
        for file in files(here, kind, count).iterdir():
            os.link(file, folder / str(part) / file.name)
    return folder


def files(here, kind, count):
    name = f"classes-{count}-{kind.mean}-{kind.stddev}"
    return here.dataset(
        name, "--samples", count, "--mean", f"{kind.mean}B", "--stddev", f"{kind.stddev}B"
    )


def engine(here, job):
    kind = job.kind
    python = process.ROOT / ".venv" / "bin" / "python"
    if not python.exists():
        raise process.CommandFailed(f"{python} does not exist: run `make develop`, which makes it")
    with Mount(here.commands, here.binary("slowfs"), job.dataset, FAST) as at:
        asked = {
            "folder": str(at.path),
            "order": kind.order,
            "batch": kind.batch,
            "drop_last": kind.drop_last,
            "seed": SEED,
            "capacities": job.rooms(),
            "staging": job.staging,
            "weights": kind.weights(),
            "parts": [str(part) for part in range(len(kind.fractions))],
        }
        loader = process.ROOT / "bench" / "loaders" / "in_step.py"
        return process.run(process.Commands(), [python, loader, json.dumps(asked)]).json


def minimum(epochs, sizes, room):
    """Bytes that MIN reads in each epoch: after each step stays what is used soonest, up to `room` bytes of it.
    A sample may stay in part, so no placement reads less."""
    steps = [set(step) for epoch in epochs for step in epoch]
    uses = {}
    for at, step in enumerate(steps):
        for sample in step:
            uses.setdefault(sample, []).append(at)
    held, reads = {}, []
    for step in steps:
        reads.append(sum(sizes[sample] - held.get(sample, 0) for sample in step))
        for sample in step:
            uses[sample].pop(0)
            held[sample] = sizes[sample]
        left, kept = room, {}
        for sample in sorted((one for one in held if uses[one]), key=lambda one: uses[one][0]):
            kept[sample] = min(held[sample], left)
            left -= kept[sample]
            if left == 0:
                break
        held = kept
    ends = [sum(len(epoch) for epoch in epochs[: number + 1]) for number in range(len(epochs))]
    return [sum(reads[begin:end]) for begin, end in zip([0, *ends], ends)]


def simulate(here, job):
    kind = job.kind
    scenario = here.folder / f"classes-{kind.name}-{job.nodes}.toml"
    scenario.write_text(f"""name = "{kind.name}"

[dataset]
path = {json.dumps(str(job.dataset))}

[training]
epochs = {EPOCHS}
batch = {kind.batch}
drop_last = {str(kind.drop_last).lower()}
order = "{kind.order}"
seed = {SEED}
{kind.training()}

[cluster]
nodes = {job.nodes}
compute = "100 MB/s"
preprocess = "100 GB/s"
network = "10 GB/s"

[cluster.source]
link = "100 GB/s"
throughput = [[1, "10 GB/s"]]

[[cluster.tier]]
name = "staging"
capacity = {job.staging}
threads = {THREADS}
read = [[1, "10 GB/s"]]

[[cluster.tier]]
name = "ram"
capacity = {job.rooms()}
threads = 2
read = [[1, "10 GB/s"]]
""")
    return here.belady("simulate", scenario, "--policy", "belady", "--json").json[0]


def report(job, found, least, told):
    """Epoch by epoch, to find the cause of a difference."""
    source = found["source"]
    by_epoch = [after - before for before, after in zip([0, *source], source)]
    process.say(f"{job.kind.name}, {job.nodes} nodes, rooms {job.rooms()} of {job.total} bytes")
    for name, values in (
        ("engine", by_epoch),
        ("bound", least),
        ("simulated", told["source_bytes_per_epoch"]),
        ("its bound", told["bound_source_bytes_per_epoch"]),
    ):
        process.say(f"  {name:10} {[round(value / job.total, 4) for value in values]}")
    for rank, engine in enumerate(found["engines"]):
        process.say(
            f"  rank {rank}  {json.dumps({key: engine[key] for key in ('source', 'tiers', 'peers')})}"
        )


def markdown(jobs):
    section = table.Section(
        [
            "class",
            "nodes",
            "engine",
            "bound",
            "beyond it",
            "simulated",
            "its bound",
            "beyond it",
            "verdict",
        ]
    )
    for job in jobs:
        over = job.engine - job.bound
        section.row(
            job.kind.name,
            job.nodes,
            share(job.engine),
            share(job.bound),
            signed(over),
            share(job.simulated),
            share(job.simulated_bound),
            signed(job.simulated - job.simulated_bound),
            table.verdict(over <= BEYOND, "bound + 0.5 %"),
        )
    return "\n".join([table.heading("python3 bench/classes.py", 1), "", section.markdown()])


def share(value):
    return f"{100 * value:.2f} %"


def signed(value):
    return f"{100 * value:+.2f} %"


if __name__ == "__main__":
    main()
