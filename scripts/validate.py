#!/usr/bin/env python3
"""Fills the tables of docs/validation-details.md from runs of `belady simulate`.

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
DOCUMENT = ROOT / "docs" / "validation-details.md"
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
                [self.belady, "simulate", *args, "--json"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                check=True,
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


def rows(header, lines):
    """A Markdown table; every column but the first is aligned right."""
    yield "| " + " | ".join(header) + " |"
    yield "|---|" + "---:|" * (len(header) - 1)
    for line in lines:
        yield "| " + " | ".join(str(cell) for cell in line) + " |"


def number(value):
    """Three or more digits that mean something."""
    if value == 0:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(abs(value))) - 1)
    return f"{value:,.{min(digits, 4)}f}"


def percent(share, digits=1):
    return f"{100 * share:.{digits}f} %"


def beside(ours, published):
    return f"{ours:,.2f} ({100 * (ours / published - 1):+.1f} %)"


def hits(outcome):
    return 1 - outcome["hit_ratio"]["source"]


def later_hits(outcome):
    """Of the bytes after the first epoch, what did not come from the source."""
    read, used = outcome["source_bytes_per_epoch"], outcome["distinct_bytes_per_epoch"]
    return 1 - sum(read[1:]) / sum(used[1:])


SERIAL, OVERLAPPED = "cluster.pipeline=serial", "cluster.pipeline=overlapped"
AGGREGATE = "cluster.source.sharing=aggregate"
NO_PEERS = "cluster.network=1 MB/s"

# ---------------------------------------------------------------------------
# HDMLP (section 5.2)

HDMLP = {  # tables 5.1 to 5.4
    "perfect": (7.30, 3825.66, 7655.25, 15204.78),
    "naive": (27.78, 15130.54, 30272.96, 60526.36),
    "nopfs": (7.78, 3836.12, 7661.26, 16795.17),
    "staging": (10.24, 4982.27, 9945.29, 19888.26),
    "deepio-ordered": (8.41, 4433.27, 23948.24, 54122.52),
    "deepio-opportunistic": (8.40, 4432.90, 8487.42, 16034.89),
    "parallel-staging": (10.11, 4972.65, 9313.58, 16861.82),
    "lbann-dynamic": (7.71, 4051.12, None, None),
    "lbann-preload": (8.41, 4433.27, None, None),
    "locality-aware": (8.41, 4433.27, 9314.33, 19082.99),
}


def hdmlp(scenario):
    def make(runs):
        overlapped = by_policy(runs(f"hdmlp-{scenario}"))
        serial = by_policy(runs(f"hdmlp-{scenario}", SERIAL))
        lines = []
        for policy, all_published in HDMLP.items():
            published = all_published[scenario - 1]
            if published is None:
                reason = "cannot run" if not overlapped[policy]["supported"] else "runs"
                lines.append((policy, "N/A", reason, reason))
                continue
            ours = [beside(run[policy]["seconds"], published) for run in (overlapped, serial)]
            lines.append((policy, f"{published:,.2f}", *ours))
        return rows(("policy", "published, s", "overlapped", "serial"), lines)

    return make


for scenario in (1, 2, 3, 4):
    table(f"hdmlp-{scenario}")(hdmlp(scenario))


@table("hdmlp-environment")
def hdmlp_environment(runs):
    name, no_ram = "hdmlp-environment", "cluster.tier.ram.capacity=0"
    staging = "cluster.tier.staging.capacity=1024 MB,2048 MB,4096 MB"
    ram = "cluster.tier.ram.capacity=10240 MB,20480 MB,40960 MB"
    storage = "cluster.tier.storage.capacity=20480 MB,40960 MB,81920 MB"

    def column(*sets):
        # Staging alone: perfect and naive once, nopfs at each size.
        bare = runs(name, *sets, no_ram, policies=("perfect", "naive", "nopfs"), sweeps=(staging,))
        found = bare[:2] + [run for run in bare if run["policy"] == "nopfs"]
        found += runs(name, *sets, policies=("nopfs",), sweeps=(ram,))
        found += runs(name, *sets, no_ram, policies=("nopfs",), sweeps=(storage,))
        return [run["seconds"] for run in found]

    published = [
        ("lower bound", 7655.47),
        ("no storage (`naive`)", 30275.72),
        ("staging 1 GB", 9947),
        ("staging 2 GB", 9947),
        ("staging 4 GB", 9947),
        ("10 GB RAM (5.5)", 9554.47),
        ("20 GB RAM (5.5)", 9239.67),
        ("40 GB RAM (5.5)", 8613.13),
        ("20 GB storage (5.6)", 9579.53),
        ("40 GB storage (5.6)", 9257.99),
        ("80 GB storage (5.6)", 8703.59),
    ]
    columns = [column(OVERLAPPED), column(SERIAL), column(OVERLAPPED, NO_PEERS)]
    lines = [
        (what, f"{value:,.2f}", *(beside(column[at], value) for column in columns))
        for at, (what, value) in enumerate(published)
    ]
    header = ("configuration", "published, s", "overlapped", "serial", "overlapped, no peers")
    return rows(header, lines)


@table("hdmlp-peers")
def hdmlp_peers(runs):
    lines = []
    for scenario in (1, 2, 3, 4):
        published = HDMLP["nopfs"][scenario - 1]
        name = f"hdmlp-{scenario}"
        with_peers = by_policy(runs(name))["nopfs"]["seconds"]
        without = runs(name, NO_PEERS, policies=("nopfs",))[0]["seconds"]
        lines.append(
            (name, f"{published:,.2f}", beside(with_peers, published), beside(without, published))
        )
    return rows(("`nopfs` in", "published, s", "peers in reach", "peers out of reach"), lines)


# ---------------------------------------------------------------------------
# NoPFS (section 6)

NOPFS = ("mnist", "imagenet-1k", "openimages", "imagenet-22k", "cosmoflow", "cosmoflow-512")
# All policies on 14 million samples with the other pipeline would say nothing new.
LARGE = ("imagenet-22k",)


def figure_8(*sets):
    def make(runs):
        names = [name for name in NOPFS if not (sets and name in LARGE)]
        all_runs = [by_policy(runs(f"nopfs-{name}", *sets)) for name in names]
        lines = [("`perfect`, s", *(number(run["perfect"]["seconds"]) for run in all_runs))]
        for policy in all_runs[0]:
            if policy == "perfect":
                continue
            cells = []
            for run in all_runs:
                share = run[policy]["seconds"] / run["perfect"]["seconds"]
                cells.append(f"{share:.3f}" if run[policy]["supported"] else "cannot run")
            lines.append((policy, *cells))
        return rows(("time / `perfect`", *names), lines)

    return make


table("nopfs-overlapped")(figure_8())
table("nopfs-serial")(figure_8(SERIAL))


@table("nopfs-environment")
def nopfs_environment(runs):
    shape = ("training.epochs=2", "dataset.clamp=true", "dataset.total=2058 GB")

    def hours(policy, ram, ssd, *sets):
        caches = (f"cluster.tier.ram.capacity={ram}", f"cluster.tier.ssd.capacity={ssd}")
        return (
            runs("nopfs-environment", *sets, *shape, *caches, policies=(policy,))[0]["seconds"]
            / 3600
        )

    lines = []
    for what, value, *of in (
        ("lower bound", 1.06, "perfect", "0", "0"),
        ("staging alone", 1.64, "nopfs", "0", "0"),
        ("32 GB RAM", None, "nopfs", "32 GB", "0"),
        ("512 GB RAM, 1,024 GB SSD", None, "nopfs", "512 GB", "1024 GB"),
    ):
        ours = [hours(*of, sets) for sets in (OVERLAPPED, SERIAL)]
        cells = [f"{x:.3f}" if value is None else beside(x, value) for x in ours]
        lines.append((what, "figure only" if value is None else value, *cells))
    return rows(("configuration", "published, h", "overlapped", "serial"), lines)


# ---------------------------------------------------------------------------
# Lobster (section 5)

LOBSTER = {
    "imagenet-1k-1node": {"pytorch": 1.6, "dali": 1.7, "nopfs": 1.2},
    "imagenet-1k-8nodes": {"pytorch": 1.4},
    "imagenet-22k-1node": {"pytorch": 1.8, "dali": 1.7, "nopfs": 1.2},
    "imagenet-22k-8nodes": {"pytorch": 2.0, "dali": 1.4, "nopfs": 1.2},
}
LOBSTER_POLICIES = (
    "pytorch",
    "dali",
    "nopfs",
    "lobster-eviction",
    "lobster-threads",
    "lobster",
    "belady",
)


def lobster_run(runs, name):
    return by_policy(runs(f"lobster-{name}", AGGREGATE))


def lobster_runs(runs):
    return {name: lobster_run(runs, name) for name in LOBSTER}


@table("lobster-hits")
def lobster_hits(runs):
    published = {"pytorch": 0.245, "dali": 0.326, "nopfs": 0.489, "lobster": 0.632}
    one, eight = (lobster_run(runs, f"imagenet-1k-{nodes}") for nodes in ("1node", "8nodes"))
    lines = [
        (
            policy,
            percent(published[policy]) if policy in published else "",
            percent(hits(one[policy])),
            percent(later_hits(one[policy]), 2),
            percent(hits(eight[policy])),
            percent(later_hits(eight[policy]), 2),
        )
        for policy in LOBSTER_POLICIES
    ]
    header = ("hits", "published, 1 node", "1 node", "after epoch 0", "8 nodes", "after epoch 0")
    return rows(header, lines)


@table("lobster-times")
def lobster_times(runs):
    all_runs = lobster_runs(runs)
    lines = []
    for policy in LOBSTER_POLICIES:
        cells = []
        for name, published in LOBSTER.items():
            share = all_runs[name][policy]["seconds"] / all_runs[name]["lobster"]["seconds"]
            cells.append(
                f"{share:.2f}" + (f" ({published[policy]})" if policy in published else "")
            )
        lines.append((policy, *cells))
    return rows(("time / `lobster` (published)", *LOBSTER), lines)


@table("lobster-ablation")
def lobster_ablation(runs):
    one = lobster_run(runs, "imagenet-1k-1node")
    published = {
        "lobster": "1.7",
        "lobster-threads": "1.3",
        "lobster-eviction": "1.15",
        "dali": "1",
    }
    lines = [
        (
            policy,
            value,
            f"{one['dali']['seconds'] / one[policy]['seconds']:.2f}",
            number(one[policy]["seconds"]),
        )
        for policy, value in published.items()
    ]
    return rows(("policy", "published, DALI / it", "ours", "seconds"), lines)


@table("lobster-readings")
def lobster_readings(runs):
    name = "lobster-imagenet-1k-1node"
    one = by_policy(runs(name, AGGREGATE))
    worker = runs(
        name,
        "cluster.nodes=8",
        "cluster.ranks_per_node=1",
        "cluster.tier.staging.capacity=500 MB",
        "cluster.tier.staging.threads=8",
        "cluster.tier.ram.capacity=5 GB",
        "cluster.tier.ram.threads=1",
        policies=("nopfs",),
    )[0]
    lines = [
        (what, number(run["seconds"]), percent(later_hits(run), 2))
        for what, run in (
            ("`lobster`", one["lobster"]),
            ("`nopfs`, one worker of 40 GB", one["nopfs"]),
            ("`nopfs`, eight workers of 5 GB", worker),
        )
    ]
    return rows(("reading", "seconds", "hits after epoch 0"), lines)


@table("lobster-utilisation")
def lobster_utilisation(runs):
    """The share of the run in which the mean GPU computes."""
    published = {"pytorch": 0.523, "dali": 0.575, "nopfs": 0.724, "lobster": 0.761}
    one = lobster_run(runs, "imagenet-1k-1node")
    lines = []
    for policy in LOBSTER_POLICIES:
        run = one[policy]
        busy = run["mean_compute_seconds"] / run["seconds"]
        off = f" ({100 * (busy / published[policy] - 1):+.0f} %)" if policy in published else ""
        lines.append(
            (policy, percent(published[policy]) if policy in published else "", percent(busy) + off)
        )
    return rows(("busy GPUs, one node", "published", "ours"), lines)


@table("lobster-imbalance")
def lobster_imbalance(runs):
    all_runs = lobster_runs(runs)
    lines = [
        (
            policy,
            *(
                percent(all_runs[name][policy]["imbalanced_iterations_after_first"])
                for name in LOBSTER
            ),
        )
        for policy in LOBSTER_POLICIES
    ]
    return rows(("imbalanced iterations", *LOBSTER), lines)


# ---------------------------------------------------------------------------
# MONARCH (section IV)

MONARCH = ("monarch-100gib", "monarch-200gib-lenet", "monarch-200gib")


@table("monarch-times")
def monarch_times(runs):
    published = {
        "monarch-100gib": {"lustre": 18.9, "local": 9.8, "cache": 14.4, "monarch": 11.8},
        "monarch-200gib-lenet": {"lustre": 46.4, "monarch": 33.4},
    }
    lines = []
    for name in MONARCH:
        for policy, run in by_policy(runs(name, AGGREGATE)).items():
            if policy == "perfect":
                continue
            value = published.get(name, {}).get(policy)
            minutes = run["seconds"] / 60
            ours = (
                "cannot run"
                if not run["supported"]
                else beside(minutes, value)
                if value
                else f"{minutes:,.2f}"
            )
            first = number(run["epoch_seconds"][0] / 60) if run["supported"] else ""
            lines.append((f"{name}, {policy}", value or "", ours, first))
    return rows(("scenario, policy", "published, min", "ours", "first epoch"), lines)


@table("monarch-operations")
def monarch_operations(runs):
    published = {
        ("monarch-100gib", "lustre"): "360,000 an epoch",
        ("monarch-100gib", "cache"): "360,000 in the first",
        ("monarch-200gib-lenet", "lustre"): "2,400,000 in all",
        ("monarch-200gib-lenet", "monarch"): "50 % fewer",
        ("monarch-200gib", "lustre"): "2,400,000 in all",
        ("monarch-200gib", "monarch"): "56 % fewer",
    }
    lines = []
    for name in MONARCH:
        found = by_policy(runs(name, AGGREGATE))
        reads = {
            p: [ops["read"] for ops in run["source_ops_per_epoch"]] for p, run in found.items()
        }
        for policy, run in found.items():
            if policy in ("perfect", "local") or not run["supported"]:
                continue
            fewer = 1 - sum(reads[policy]) / sum(reads["lustre"])
            opens = ", ".join(f"{ops['open']:,}" for ops in run["source_ops_per_epoch"])
            lines.append(
                (
                    f"{name}, {policy}",
                    published.get((name, policy), ""),
                    ", ".join(f"{count:,}" for count in reads[policy]),
                    percent(fewer) + " fewer",
                    opens,
                )
            )
    return rows(
        ("scenario, policy", "published reads", "reads by epoch", "in all", "opens by epoch"), lines
    )


# Minutes of three epochs: what was run, the published `lustre`, `local`, `cache` and `monarch`, and
# the `local` of the 100 GiB whose images a second the GPUs of a 200 GiB run are given. Where the
# paper prints a saving in minutes and per cent, the minutes are their quotient.
MONARCH_MODELS = (
    ("TensorFlow, 100 GiB, AlexNet", 18.9, 15.1, 16.6, 14.0, 15.1),
    ("TensorFlow, 200 GiB, AlexNet", 59.5, None, None, 47.0, 15.1),
    ("PyTorch, 100 GiB, LeNet", 77.4, 17.5, None, 20.1, 17.5),
    ("PyTorch, 100 GiB, AlexNet", 77.3, 16.1, None, 17.8, 16.1),
    ("PyTorch, 100 GiB, ResNet-50", 84.0, 69.9, None, 72.4, 69.9),
    ("PyTorch, 200 GiB, LeNet", 165.7, None, None, 107.7, 17.5),
    ("PyTorch, 200 GiB, AlexNet", 165.4, None, None, 104.2, 16.1),
    ("PyTorch, 200 GiB, ResNet-50", 240.0, None, None, 228.0, 69.9),
)
GIB = 2**30


def monarch_model(runs, what, lustre, local):
    """Runs of one model. The source has the rate of the published `lustre`, the GPUs that of `local`."""
    large = "200 GiB" in what
    size = (200 if large else 100) * GIB
    images = 3 * (2_944_000 if large else 900_000)
    rate = 3 * size / (lustre * 60)
    compute = (2_700_000 / (local * 60)) * (3 * size / images) / 4
    return by_policy(
        runs(
            "monarch-200gib-lenet" if large else "monarch-100gib",
            AGGREGATE,
            f'cluster.source.throughput=[[1, "{rate / 1e6:.1f} MB/s"]]',
            f"cluster.compute={compute / 1e6:.2f} MB/s",
        )
    )


@table("monarch-models")
def monarch_models(runs):
    lines = []
    for what, lustre, local, cache, monarch, rate in MONARCH_MODELS:
        found = monarch_model(runs, what, lustre, rate)
        published = {"lustre": lustre, "local": local, "cache": cache, "monarch": monarch}
        cells = []
        for policy, value in published.items():
            run = found[policy]
            minutes = run["seconds"] / 60
            cells.append("" if value is None else f"{value} → " + beside(minutes, value))
        lines.append((what, *cells, f"{found['belady']['seconds'] / 60:,.2f}"))
    header = ("minutes, published → ours", "lustre", "local", "cache", "monarch", "belady")
    return rows(header, lines)


@table("monarch-models-reads")
def monarch_models_reads(runs):
    published = {
        "TensorFlow, 200 GiB, AlexNet": "56 % fewer reads",
        "PyTorch, 100 GiB, LeNet": "67 % fewer `mmap` (1,152 for 3,461), 50 % fewer open and close (4,618 for 9,234)",
        "PyTorch, 200 GiB, LeNet": "39 % fewer `mmap` after the first epoch (2,322 for 3,780), 50 % fewer open and close (4,640 for 9,274)",
    }
    lines = []
    for what, lustre, _, _, _, rate in MONARCH_MODELS:
        if what not in published:
            continue
        found = monarch_model(runs, what, lustre, rate)

        def fewer(kind, first, found=found):
            counts = [
                [ops[kind] for ops in found[p]["source_ops_per_epoch"]][first:]
                for p in ("monarch", "lustre")
            ]
            return percent(1 - sum(counts[0]) / sum(counts[1]))

        lines.append((what, published[what], fewer("read", 0), fewer("open", 0), fewer("open", 1)))
    header = ("run", "published", "fewer reads", "fewer opens", "fewer opens after the first epoch")
    return rows(header, lines)


@table("monarch-long-run")
def monarch_long_run(runs):
    found = monarch_model(runs, "PyTorch, 200 GiB, AlexNet", 165.4, 16.1)
    lines = []
    for policy, value in (("lustre", 48.0), ("monarch", 28.0)):
        first, second, *_ = found[policy]["epoch_seconds"]
        lines.append((policy, f"{value:.0f}", beside((first + 47 * second) / 3600, value)))
    return rows(("48 epochs", "published, h", "ours"), lines)


# ---------------------------------------------------------------------------
# What `belady` promises

ALL = [
    "perfect",
    "naive",
    "staging",
    "deepio-ordered",
    "deepio-opportunistic",
    "parallel-staging",
    "lbann-dynamic",
    "lbann-preload",
    "locality-aware",
    "nopfs",
    "lobster",
    "monarch",
    "lru",
    "belady",
]
NOT_COMPARED = {"perfect", "local", "deepio-opportunistic", "parallel-staging", "locality-aware"}
# In scenarios that name their policies, the others; where that is too long to wait for,
# those that could matter.
FEW = {
    "nopfs-environment": ("staging", "lobster", "monarch", "lru"),
    "lobster-imagenet-22k-1node": ("monarch", "lru"),
    "lobster-imagenet-22k-8nodes": ("monarch", "lru"),
}


def scenarios():
    return sorted(path.stem for path in (ROOT / "scenarios").glob("*.toml"))


def everything(runs, name):
    """All policies under aggregate sharing."""
    found = by_policy(runs(name, AGGREGATE))
    text = (ROOT / "scenarios" / f"{name}.toml").read_text()
    named = set(re.findall(r"^\[\[policy\]\]\s*name = \"([a-z-]+)\"", text, re.MULTILINE))
    missing = [policy for policy in FEW.get(name, ALL) if named and policy not in named]
    if missing:
        found |= by_policy(runs(name, AGGREGATE, policies=missing))
    return found


def capacity(name):
    """N·D in bytes, from the scenario's text."""
    import tomllib

    cluster = tomllib.loads((ROOT / "scenarios" / f"{name}.toml").read_text())["cluster"]
    units = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "GiB": 2**30}
    total = 0
    for tier in cluster["tier"][1:]:
        amount, unit = tier["capacity"].split()
        total += float(amount) * units[unit]
    return cluster["nodes"] * total


@table("belady-source")
def belady_source(runs):
    lines = []
    for name in scenarios():
        run = everything(runs, name)["belady"]
        used, read = run["distinct_bytes_per_epoch"], run["source_bytes_per_epoch"]
        first, cache = run["first_reads_per_epoch"], capacity(name)
        least = [max(0, s - cache) / s for s in used]
        excess = [(r - f) / s - m for r, f, s, m in zip(read, first, used, least)][1:]
        lines.append(
            (
                name,
                "yes" if read[0] == used[0] else f"no: {read[0] / used[0]:.4f}",
                percent(least[-1], 2),
                percent(max(excess), 3),
                percent(max(f / s for f, s in zip(first[1:], used[1:])), 3),
            )
        )
    header = (
        "scenario",
        "first epoch once",
        "later: (S_e − N·D)/S_e",
        "read beyond it",
        "first-ever reads",
    )
    return rows(header, lines)


@table("belady-time")
def belady_time(runs):
    lines = []
    for name in scenarios():
        found = everything(runs, name)
        belady = found["belady"]
        others = [
            run
            for policy, run in found.items()
            if run["supported"] and policy not in NOT_COMPARED | {"belady"}
        ]
        best = min(others, key=lambda run: run["seconds"])
        by = belady["bound_by"]
        lines.append(
            (
                name,
                f"{by[0]}, then {by[1]}",
                number(belady["bound_seconds"]),
                f"{belady['seconds'] / belady['bound_seconds']:.4f}",
                best["policy"],
                f"{belady['seconds'] / best['seconds']:.4f}",
            )
        )
    header = (
        "scenario",
        "what binds",
        "bound, s",
        "belady / bound",
        "best other",
        "belady / best other",
    )
    return rows(header, lines)


@table("belady-balance")
def belady_balance(runs):
    lines = []
    for name in scenarios():
        found = everything(runs, name)
        belady, lobster = found["belady"], found["lobster"]
        share, other = (run["imbalanced_iterations_after_first"] for run in (belady, lobster))
        wait = belady["mean_wait_share"]
        verdict = "not judged" if 0.03 <= wait <= 0.08 else "yes" if share <= 0.02 else "no"
        lines.append(
            (
                name,
                percent(other),
                percent(share),
                percent(wait),
                verdict if other >= 0.05 else "not asked",
            )
        )
    return rows(("scenario", "lobster", "belady", "belady's mean wait", "at most 2 %"), lines)


@table("below-bound")
def below_bound(runs):
    lines = []
    for name in scenarios():
        for policy, run in everything(runs, name).items():
            if (
                run["supported"]
                and policy not in NOT_COMPARED
                and run["seconds"] < 0.99 * run["bound_seconds"]
            ):
                lines.append((f"{name}, {policy}", f"{run['seconds'] / run['bound_seconds']:.4f}"))
    return rows(("run", "time / bound"), lines or [("none", "")])


# ---------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--belady", default="target/release/belady", help="the binary to run")
    parser.add_argument("--keep", help="where runs are kept, and found again")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="tables to fill; all by default")
    args = parser.parse_args()
    for name in args.tables:
        if name not in TABLES:
            parser.error(f"there is no table {name}; there are {', '.join(TABLES)}")
    with tempfile.TemporaryDirectory() as scratch:
        runs = Runs(str((ROOT / args.belady).resolve()), args.keep or scratch)
        text = DOCUMENT.read_text()
        for name in args.tables or TABLES:
            begin, end = f"<!-- table {name} -->\n", "<!-- end -->"
            if begin not in text:
                sys.exit(f"{DOCUMENT} has no place for the table {name}")
            head, rest = text.split(begin, 1)
            tail = rest.split(end, 1)[1]
            text = head + begin + "\n" + "\n".join(TABLES[name](runs)) + "\n\n" + end + tail
            DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
