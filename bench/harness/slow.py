"""The slow section: a source behind slowfs, caches from nothing to everything.

Bytes and operations are slowfs's own counters. Beside `belady read` stand the plain 16-thread
reader on the same mount, the same reader on a mount with a page cache in a memory cgroup (LRU,
as the kernel does it), the resource bound, and what `belady simulate` predicts. Our caches are
in RAM, on the local disk, or both; beside the page cache stands the one in RAM.
"""

import contextlib
import dataclasses
import json
import shutil
import statistics

from .cgroup import MemoryGroup, NoCgroup
from .context import SAMPLE
from .mount import HDMLP_4, Mount
from .process import say
from .table import Section, rate, seconds, signed_percent, size, spread, verdict

FACTOR = 2
CURVE = {readers: FACTOR * value for readers, value in HDMLP_4.items()}
# What hdmlp-4's four nodes compute together, scaled like the source.
CONSUME = FACTOR * 400e6
SAMPLES = 10_000
EPOCHS = 5
STAGING = 64 << 20
THREADS = 16
# What the reader itself holds differs by some MB from run to run; the kernel's pages are not to pay for it.
CGROUP_SLACK = 16 << 20
PAGE = 4096


@dataclasses.dataclass(frozen=True)
class Cache:
    """What may be kept, in bytes, and what it is called in the table."""

    name: str
    ram: int = 0
    disk: int = 0

    @property
    def total(self):
        return self.ram + self.disk


def caches(total):
    """From nothing to everything, as shares of a dataset of this many bytes."""
    yield Cache("none")
    for share in (0.3, 0.6, 1.0):
        yield Cache(f"{share:.0%} RAM", ram=round(share * total))
    for share in (0.3, 0.6, 1.0):
        yield Cache(f"{share:.0%} disk", disk=round(share * total))
    yield Cache("20% RAM, 40% disk", ram=round(0.2 * total), disk=round(0.4 * total))


def slow(context):
    dataset = context.dataset(
        "flat-slow", "--samples", SAMPLES, "--mean", f"{SAMPLE}B", "--stddev", "10KB"
    )
    total = sum(file.stat().st_size for file in dataset.iterdir())
    section = Section(
        [
            "cache",
            "loader",
            "epoch 1",
            "later epochs",
            "of the bound",
            "of simulate",
            "stall",
            "source bytes, later",
            "over the bound",
            "opens, reads",
            "CPU-s",
            "",
        ]
    )
    pages, own = [], own_memory(context, dataset)
    for cache in caches(total):
        bound = max(total / CONSUME, max(0, total - cache.total) / (1e6 * max(CURVE.values())))
        predicted = simulate(context, dataset, cache)
        for name, runs in in_turns(loaders(context, dataset, cache, own), context.runs).items():
            if runs is None:
                section.row(cache.name, name, "not measured", *[""] * 10)
                continue
            add_row(section, cache, name, runs, total, bound, predicted)
            pages += (
                [f"{cache.name} {spread([run['held'].pages for run in runs], size)}"]
                if "held" in runs[0]
                else []
            )
        section.row(
            cache.name,
            "`belady simulate`",
            seconds(predicted["epoch_seconds"][0]),
            seconds(later(predicted["epoch_seconds"])),
            "",
            "",
            "",
            size(later(predicted["source_bytes_per_epoch"])),
            "",
            "",
            "",
            "",
        )
        section.row(
            cache.name,
            "bound",
            "",
            seconds(bound),
            "",
            "",
            "",
            size(max(0, total - cache.total)),
            "",
            "",
            "",
            "",
        )
    section.note(
        f"Dataset: {SAMPLES:,} files, {size(total)}. t(γ) of `scenarios/hdmlp-4.toml` times "
        f"{FACTOR}: {', '.join(f'{n}: {r} MB/s' for n, r in CURVE.items())}, no latency. Consumer: "
        f"{rate(CONSUME)}; staging {STAGING >> 20} MiB; {THREADS} threads; batch 64; {EPOCHS} "
        "epochs. A later epoch is the mean of epochs 2 to "
        f"{EPOCHS}. Source bytes, opens and reads: slowfs's counters over the whole run, less one "
        "reading of the dataset for the first epoch, per later epoch; *over the bound*, opens and reads are of the worst run. The page "
        "cache is limited by a memory cgroup of the cache's size in whole pages, and what the reader held itself in a "
        f"run without a limit ({size(own or 0)}, {CGROUP_SLACK >> 20} MiB more); pages that it held at most: {', '.join(pages) or 'not measured'}. "
        "The plain reader keeps nothing, so it stands "
        "beside no cache only. A cache on disk is a fresh folder on this machine's disk, whose own "
        "page cache is not limited."
    )
    return section


def loaders(context, dataset, cache, own):
    """What is measured with this cache, by name."""
    measured = {"belady": lambda: ours(context, dataset, cache)}
    if cache.total == 0:
        measured["plain reader"] = lambda: plain(context, dataset)
    elif cache.disk == 0:
        measured["page cache (LRU)"] = lambda: page_cache(context, dataset, cache.ram, own)
    return measured


def in_turns(measured, runs):
    """What each gave, by name, in turns, so that a busy neighbour meets all; none where memory cannot be
    limited."""
    found = {name: [] for name in measured}
    for _ in range(runs):
        for name, measure in measured.items():
            try:
                if found[name] is not None:
                    found[name].append(measure())
            except NoCgroup as error:
                say(f"{name}: {error}")
                found[name] = None
    return found


def later(values):
    return statistics.mean(values[1:])


def add_row(section, cache, name, runs, total, bound, predicted):
    epochs = [[epoch["seconds"] for epoch in run["epochs"]] for run in runs]
    times = [later(values) for values in epochs]
    stalls = [later([e["stall_seconds"] for e in run["epochs"]]) for run in runs]
    per_epoch = [(run["source"]["bytes"] - total) / (EPOCHS - 1) for run in runs]
    source = max(per_epoch)
    worst = runs[per_epoch.index(source)]["source"]
    operations = [(worst[kind] - SAMPLES) / (EPOCHS - 1) for kind in ("open", "read")]
    over = (source - max(0, total - cache.total)) / total
    middle = statistics.median(times)
    off_bound, off_simulated = middle / bound - 1, middle / later(predicted["epoch_seconds"]) - 1
    judged = ""
    if name == "belady":
        judged = ", ".join(
            (
                verdict(off_bound <= 0.05, "bound + 5 %"),
                verdict(abs(off_simulated) <= 0.05, "simulate ± 5 %"),
                verdict(over <= 0.01, "bytes + 1 %"),
            )
        )
    section.row(
        cache.name,
        name,
        spread([values[0] for values in epochs], seconds),
        spread(times, seconds),
        signed_percent(off_bound),
        signed_percent(off_simulated),
        spread(stalls, seconds),
        spread(per_epoch, size),
        f"{100 * over:+.2f} %",
        ", ".join(f"{count:,.0f}" for count in operations),
        spread([run["cpu"] for run in runs], lambda value: f"{value:.2f}"),
        judged,
    )


def counted(context, dataset, run, *options):
    """Runs on a fresh mount; the loader's report with the mount's counters."""
    with Mount(context.commands, context.binary("slowfs"), dataset, CURVE, *options) as at:
        finished = run(at.path)
        return {**finished.json, "cpu": finished.cpu, "source": at.stats()}


def ours(context, dataset, cache):
    system = context.folder / f"system-{cache.ram}-{cache.disk}.toml"
    system.write_text(cluster(cache))
    folder = context.folder / "slow-cache"
    cached = ("--cache", f"ram:{cache.ram}B") if cache.ram else ()
    cached += ("--cache", f"{folder}:{cache.disk}B") if cache.disk else ()
    with empty_folder(folder):
        return counted(
            context,
            dataset,
            lambda at: context.read(
                at,
                "flat",
                "--epochs",
                EPOCHS,
                "--staging",
                f"{STAGING}B",
                "--threads",
                THREADS,
                *cached,
                "--policy",
                "belady",
                "--consume",
                f"{CONSUME / 1e6:g}MB/s",
                "--system",
                system,
            ),
        )


@contextlib.contextmanager
def empty_folder(path):
    """No run finds what an earlier one has cached, and none leaves anything."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


def reader(context, at, **how):
    return context.baseline(
        "reader",
        at,
        "--threads",
        THREADS,
        "--epochs",
        EPOCHS,
        "--batch",
        64,
        "--staging",
        f"{STAGING}B",
        "--consume",
        f"{CONSUME / 1e6:g}MB/s",
        **how,
    )


def plain(context, dataset):
    return counted(context, dataset, lambda at: reader(context, at))


def own_memory(context, dataset):
    """What the reader holds beside pages of files, and the kernel for it (names, inodes), without a limit."""
    try:
        with MemoryGroup(context.commands) as group:
            counted(
                context,
                dataset,
                lambda at: reader(context, at, inside=group.inside),
                "--page-cache",
            )
    except NoCgroup:
        return None
    return group.held.own


def page_cache(context, dataset, cache, own):
    if own is None:
        raise NoCgroup("there is no memory cgroup that could limit the page cache")
    # The kernel keeps whole pages; let it have as many as the cache's part of the files needs.
    sizes = [file.stat().st_size for file in dataset.iterdir()]
    pages = sum(-(-size // PAGE) * PAGE for size in sizes) * cache // sum(sizes)
    with MemoryGroup(context.commands, pages + own + CGROUP_SLACK) as group:
        found = counted(
            context, dataset, lambda at: reader(context, at, inside=group.inside), "--page-cache"
        )
    return {**found, "held": group.held}


def tier(name, capacity, rate):
    return (
        f"""
[[cluster.tier]]
name = "{name}"
capacity = {capacity}
threads = 2
read = [[1, "{rate}"]]
"""
        if capacity
        else ""
    )


def cluster(cache):
    """The machine as `belady read --system` and `belady simulate` know it."""
    curve = ", ".join(f'[{readers}, "{value} MB/s"]' for readers, value in CURVE.items())
    tiers = tier("ram", cache.ram, "10 GB/s") + tier("disk", cache.disk, "2 GB/s")
    # Rates that no run comes near: what binds is the source and the consumer.
    return f"""[cluster]
nodes = 1
compute = "{CONSUME / 1e6:g} MB/s"
preprocess = "100 GB/s"
network = "10 GB/s"

[cluster.source]
link = "100 GB/s"
sharing = "aggregate"
readers = "threads"
throughput = [{curve}]

[[cluster.tier]]
name = "staging"
capacity = {STAGING}
threads = {THREADS}
read = [[1, "10 GB/s"]]
{tiers}"""


def simulate(context, dataset, cache):
    scenario = context.folder / f"slow-{cache.ram}-{cache.disk}.toml"
    scenario.write_text(f"""name = "slow"

[dataset]
path = {json.dumps(str(dataset))}

[training]
epochs = {EPOCHS}
batch = 64
order = "torch"
seed = 0

{cluster(cache)}""")
    return context.belady("simulate", scenario, "--policy", "belady", "--json").json[0]
