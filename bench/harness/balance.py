"""Eight ranks of one node behind a slow source: what each policy makes of their balance.

`belady read --local-ranks 8 --barrier` is one engine whose consumers sleep for the time of their
computing and end every step together. Sizes are as skewed as ImageNet's. Beside each run stands what
`belady simulate` predicts of the same job.
"""

import dataclasses
import json
import statistics

from .mount import HDMLP_4, Mount
from .slow import in_turns
from .table import Section, percent, rate, seconds, signed_percent, size, spread, verdict

RANKS = 8
SHARES = (0.3, 0.6)
POLICIES = ("staging", "nopfs", "lobster", "belady")
# Lobster's ablation (its section 5): by default both parts are on.
ABLATION = {
    "lobster": "both",
    "lobster,eviction=false": "threads only",
    "lobster,threads=false": "eviction only",
    "lobster,threads=false,eviction=false": "neither",
}
# Of each tier that prefetches: p_j.
PREFETCHERS = 2
# How far a run may be from what was simulated.
OFF_SIMULATED = 0.1
OVER_BOUND = 0.01


@dataclasses.dataclass(frozen=True)
class Setup:
    """The machine's rates, and what is done with a batch."""

    name: str
    batch: int
    # Of one rank, in bytes a second.
    consume: float
    curve: dict
    threads: int
    staging: int
    epochs: int = 5
    transform: tuple = ()
    # Of one thread that preprocesses, or by their number, as a scenario has it.
    preprocess: str = '"100 GB/s"'


# N(μ/4, 9μ/8) cut at 0 has σ/μ = 0.7, as ImageNet's sizes.
MEAN = 40_000
DATASET = ("--samples", 10_000, "--mean", f"{MEAN // 4}B", "--stddev", f"{MEAN * 9 // 8}B")
RAW = Setup(
    name="balance",
    batch=16,
    consume=50e6,
    curve=HDMLP_4,
    threads=16,
    staging=8 << 20,
)


def balance(context):
    """Policies beside each other."""
    dataset = context.dataset(RAW.name, *DATASET)
    return measured(context, RAW, dataset, {name: name for name in POLICIES}, judged)


def ablation(context):
    """Lobster's parts."""
    dataset = context.dataset(RAW.name, *DATASET)
    return measured(context, RAW, dataset, ABLATION, lambda *_: {})


def measured(context, setup, dataset, policies, judge):
    sizes = [file.stat().st_size for file in dataset.iterdir()]
    total = sum(sizes)
    section = Section(
        [
            "cache",
            "policy",
            "time",
            "of simulate",
            "source bytes an epoch, later",
            "over the bound",
            "imbalanced iterations",
            "simulated",
            "straggling",
            "hit ratio",
            "simulated",
            "CPU-s",
            "",
        ]
    )
    for share in SHARES:
        cache = round(share * total)
        runs = {
            policy: lambda policy=policy, cache=cache: run(context, setup, dataset, cache, policy)
            for policy in policies
        }
        found = in_turns(runs, context.runs)
        rows = {
            policy: Row(
                found[policy], predicted(context, setup, dataset, cache, policy), total, cache
            )
            for policy in policies
        }
        verdicts = judge(rows)
        for policy, name in policies.items():
            section.row(f"{share:.0%}", name, *rows[policy].cells(), verdicts.get(policy, ""))
    spread_of = statistics.pstdev(sizes) / statistics.mean(sizes)
    section.note(
        f"{len(sizes):,} files, {size(total)}, σ/μ {spread_of:.2f}; {RANKS} ranks, batch {setup.batch} each, "
        f"{rate(setup.consume)} each, a barrier after every step; {setup.epochs} epochs; staging "
        f"{setup.staging >> 20} MiB a rank; {setup.threads} threads. Source: slowfs, "
        f"{', '.join(f'{n}: {r} MB/s' for n, r in setup.curve.items())}, no page cache; its counters give the "
        "source bytes, less one reading for the first epoch. *Imbalanced iterations* and *straggling* are of "
        "all epochs after the first, as the engine counts them ([engine.md](engine.md#stragglers)): by when each "
        "rank's own batch is there, and where threads are pooled (`belady`) by when all are. *Over the bound* is "
        "of the worst run."
    )
    return section


@dataclasses.dataclass
class Row:
    """The runs of a policy with a cache, and what was simulated."""

    runs: list
    simulated: dict
    total: int
    cache: int

    @property
    def times(self):
        return [sum(epoch["seconds"] for epoch in run["epochs"]) for run in self.runs]

    @property
    def time(self):
        return statistics.median(self.times)

    @property
    def off_simulated(self):
        return self.time / sum(self.simulated["epoch_seconds"]) - 1

    @property
    def source(self):
        return [
            (run["source"]["bytes"] - self.total) / (len(run["epochs"]) - 1) for run in self.runs
        ]

    @property
    def over_bound(self):
        """Of the worst run, in shares of the dataset."""
        return (max(self.source) - max(0, self.total - self.cache)) / self.total

    def imbalanced(self, run):
        later = run["epochs"][1:]
        return sum(e["imbalanced_steps"] for e in later) / sum(e["steps"] for e in later)

    def cells(self):
        lost = [sum(e["straggling_seconds"] for e in run["epochs"][1:]) for run in self.runs]
        hits = self.simulated["hit_ratio"]
        return (
            spread(self.times, seconds),
            signed_percent(self.off_simulated),
            spread(self.source, size),
            f"{100 * self.over_bound:+.2f} %",
            spread([self.imbalanced(run) for run in self.runs], percent),
            percent(self.simulated["imbalanced_iterations_after_first"]),
            spread(lost, seconds),
            spread([run["hit_ratio"] for run in self.runs], percent),
            percent(hits["local"] + hits["peer"]),
            spread([run["cpu"] for run in self.runs], lambda value: f"{value:.1f}"),
        )


def judged(rows):
    verdicts = {
        policy: [verdict(abs(row.off_simulated) <= OFF_SIMULATED, "simulate ± 10 %")]
        for policy, row in rows.items()
    }
    belady, lobster = rows["belady"], rows["lobster"]
    verdicts["lobster"].append(verdict(lobster.time < rows["nopfs"].time, "ahead of nopfs"))
    verdicts["belady"] += [
        verdict(belady.time < min(lobster.time, rows["nopfs"].time), "ahead of both"),
        verdict(belady.over_bound <= OVER_BOUND, "bytes + 1 %"),
    ]
    return {policy: ", ".join(texts) for policy, texts in verdicts.items()}


def run(context, setup, dataset, cache, policy):
    """One run on a fresh mount, with the mount's counters."""
    system = context.folder / f"balance-{setup.name}-{cache}.toml"
    system.write_text(cluster(setup, cache, ranks=1))
    with Mount(context.commands, context.binary("slowfs"), dataset, setup.curve) as at:
        finished = context.belady(
            "read",
            at.path,
            *("--format", "flat", "--batch", setup.batch, "--seed", 0, "--order", "torch"),
            *("--epochs", setup.epochs, "--local-ranks", RANKS, "--barrier"),
            *("--staging", f"{setup.staging}B", "--threads", setup.threads),
            *("--cache", f"ram:{cache}B", "--policy", policy, "--system", system),
            *("--consume", f"{setup.consume / 1e6:g}MB/s", *setup.transform, "--json"),
        )
        report = finished.json
        if not report["order_ok"]:
            raise ValueError("belady read delivered samples out of order")
        return {**report, "cpu": finished.cpu, "source": at.stats()}


def predicted(context, setup, dataset, cache, policy):
    scenario = context.folder / f"balance-{setup.name}-{cache}-scenario.toml"
    scenario.write_text(f"""name = "balance"

[dataset]
path = {json.dumps(str(dataset))}

[training]
epochs = {setup.epochs}
batch = {setup.batch * RANKS}
order = "torch"
seed = 0

{cluster(setup, cache, ranks=RANKS)}""")
    return context.belady("simulate", scenario, "--policy", policy, "--json").json[0]


def cluster(setup, cache, ranks):
    """The machine as `belady read --system` and `belady simulate` know it."""
    curve = ", ".join(f'[{readers}, "{value} MB/s"]' for readers, value in setup.curve.items())
    return f"""[cluster]
nodes = 1
ranks_per_node = {ranks}
compute = "{setup.consume / 1e6:g} MB/s"
preprocess = {setup.preprocess}
network = "10 GB/s"

[cluster.source]
link = "100 GB/s"
sharing = "aggregate"
readers = "threads"
throughput = [{curve}]

[[cluster.tier]]
name = "staging"
capacity = {setup.staging * RANKS}
threads = {setup.threads}
read = [[1, "10 GB/s"]]

[[cluster.tier]]
name = "ram"
capacity = {cache}
threads = {PREFETCHERS}
read = [[1, "10 GB/s"]]
"""
