"""What one engine for all ranks of a node costs and saves, beside an engine a rank.

bench/loaders/ranks.py runs the ranks. All samples come from the cache in RAM.
"""

import contextlib
import json
import os
import random
import statistics
import tempfile

from .context import SAMPLE
from .process import run
from .table import Section, mib, percent, seconds, spread, times, verdict, whole

RANKS = 8
EPOCHS = 14
# Of each of two jobs at once: small beside the dataset, since they keep as much for each other.
JOB_STAGING = 6 << 20
# As in bench/loaders/jobs.py.
JOB_EPOCHS = 3
THREADS = 8
STAGING = 64 << 20
# Microseconds a batch, beyond an engine in the rank's own process.
HAND_OVER = 20
MEMORY = 1.2


def hand_over(context):
    """Microseconds a batch: an engine in another process, beside one in the program."""
    section = Section(["batch", "engine", "µs a batch", "more than embedded", ""])
    small = context.dataset("flat-1k", "--samples", 20_000, "--mean", "1000B")
    for batch in (16, 64, 256):
        found = {"embedded": [], "node": []}
        for _ in range(context.runs):
            for mode in found:
                with shared_node(context, mode):
                    told = ranks(context, small, mode, 1, batch, cache=100 << 20)
                found[mode].append(1e6 * statistics.median(told["seconds"]) / told["batches"][0])
        more = statistics.median(found["node"]) - statistics.median(found["embedded"])
        section.row(batch, "in the program", spread(found["embedded"], whole), "", "")
        judged = verdict(more <= HAND_OVER, f"{HAND_OVER} µs")
        section.row(batch, "of the node", spread(found["node"], whole), f"{more:+.0f} µs", judged)
    section.note(
        f"One rank, samples of 1 KB from a cache in RAM that holds all 20,000; the median of {EPOCHS - 2} "
        "epochs. The loop does nothing with a batch."
    )
    return section


def node(context):
    """Eight ranks with 110 KB samples: speed together, and memory."""
    section = Section(
        ["ranks", "loader", "samples/s", "of embedded", "memory beside the cache", "of one rank's", ""]
    )
    data = context.dataset("flat-110k-few", "--samples", 4_000, "--mean", f"{SAMPLE}B")
    cache = 2 * 4_000 * SAMPLE
    shapes = [("idle", 1), ("embedded", 1), ("idle", RANKS), ("embedded", RANKS), ("node", RANKS), ("torch", RANKS)]  # fmt: skip
    found = {shape: [] for shape in shapes}
    for _ in range(context.runs):
        for shape in shapes:
            found[shape].append(ranks(context, data, *shape, 32, cache))
    held = 4_000 * SAMPLE

    def memory(shape):
        """Beyond ranks that read nothing; the cache is as large for all."""
        idle = [one["memory"] for one in found["idle", shape[1]]]
        kept = 0 if shape[0] == "torch" else held
        return [one["memory"] - statistics.median(idle) - kept for one in found[shape]]

    def speeds(shape):
        return [4_000 / statistics.median(one["seconds"]) for one in found[shape]]

    of_one = statistics.median(memory(("embedded", 1)))
    of_embedded = statistics.median(speeds(("embedded", RANKS)))
    for shape in shapes:
        if shape[0] == "idle":
            continue
        speed, ours = statistics.median(speeds(shape)), statistics.median(memory(shape))
        judged = ""
        if shape[0] == "node":
            judged = ", ".join(
                (
                    verdict(speed >= of_embedded, "as fast as embedded"),
                    verdict(ours <= MEMORY * of_one, f"{MEMORY} × one rank's memory"),
                )
            )
        section.row(
            shape[1],
            TITLES[shape[0]],
            spread(speeds(shape), whole),
            percent(speed / of_embedded) if shape[1] == RANKS else "",
            spread(memory(shape), mib),
            times(ours / of_one),
            judged,
        )
    section.note(
        f"4,000 files of 110 KB, all in a cache in RAM; batch 32; staging {STAGING >> 20} MiB of all ranks together; "
        f"{THREADS} threads that load, of all ranks together; the median of {EPOCHS - 2} epochs, from the first rank's "
        "begin to the last rank's end. Memory is the PSS of all processes after the last epoch, less that of as "
        f"many processes that have imported everything and read nothing, less the {mib(held)} that the cache holds. torch's "
        "samples come from the page cache, which counts for no process."
    )
    return section


TITLES = {
    "embedded": "belady, an engine a rank",
    "node": "belady, one engine",
    "torch": "torch's DataLoader, a worker a rank",
}


def ranks(context, data, mode, count, batch, cache):
    job = {
        "mode": mode,
        "folder": str(data),
        "ranks": count,
        "batch": batch,
        "cache": cache,
        # Of all ranks together.
        "staging": STAGING // count,
        "threads": max(1, THREADS // count) if mode == "embedded" else THREADS,
        "epochs": EPOCHS,
    }
    return context.loader("ranks.py", json.dumps(job)).json


@contextlib.contextmanager
def shared_node(context, mode):
    """The engine of the node that outlives jobs, in a directory of sockets of its own."""
    if mode != "node":
        yield
        return
    with tempfile.TemporaryDirectory(prefix="belady-node-") as folder:
        os.environ["BELADY_NODE_DIR"] = folder
        belady = context.binary("belady")
        run(context.commands, [belady, "node", "start", "--cache", "ram:100MiB", "--threads", THREADS])
        try:
            yield
        finally:
            run(context.commands, [belady, "node", "stop"])
            del os.environ["BELADY_NODE_DIR"]


def two_jobs(context):
    """Source bytes of two jobs at once on one dataset, beside those of one."""
    from .mount import Mount

    section = Section(["cache", "jobs", "source bytes", "of one job's", "seconds", ""])
    data = context.dataset("flat-jobs", "--samples", 2_000, "--mean", "40KB", "--stddev", "10KB")
    total = sum(file.stat().st_size for file in data.iterdir())
    kinds = {"1": [0], "2, same order": [0, 0], "2, other orders": [0, 1]}
    for share in (1.2, 0.6):
        cache = round(share * total)
        alone = None
        for kind, seeds in kinds.items():
            found = [jobs_at_once(context, Mount, data, cache, seeds) for _ in range(context.runs)]
            sources = [source for source, _ in found]
            alone = alone or statistics.median(sources)
            of_one = max(sources) / alone
            section.row(
                f"{share:.0%}",
                kind,
                spread([source / total for source in sources], times),
                times(of_one),
                spread([took for _, took in found], seconds),
                verdict(of_one <= 1.05, "1.05 times one job's") if len(seeds) > 1 else "",
            )
    section.note(
        "`belady node start` with a cache in RAM of this share of the dataset, and programs of one rank that "
        f"read it for three epochs, with a staging buffer of {JOB_STAGING >> 20} MiB ({JOB_STAGING / total:.0%} of "
        "the dataset), behind slowfs (hdmlp-4's t(γ), no page cache) and take 1 ms a batch; source bytes are slowfs's "
        "counter, in datasets, and *of one job's* is of the worst run. Bélády's MIN over both of two random orders, in "
        f"step, reads {times(least_of_two(data, cache))} as much as over one, with a cache of {share:.0%}."
    )
    return section


def least_of_two(data, cache):
    """What the least source bytes of two jobs in step are, of those of one job."""
    from classes import minimum

    sizes = [file.stat().st_size for file in data.iterdir()]
    rng = random.Random(0)

    def epochs():
        orders = (rng.sample(range(len(sizes)), len(sizes)) for _ in range(JOB_EPOCHS))
        return [[order[at : at + 32] for at in range(0, len(order), 32)] for order in orders]

    one, other = epochs(), epochs()
    both = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(one, other, strict=True)]
    return sum(minimum(both, sizes, cache)) / sum(minimum(one, sizes, cache))


def jobs_at_once(context, mount, data, cache, seeds):
    """Source bytes of programs with these seeds that start together, and their seconds."""
    from .mount import HDMLP_4
    from .process import Commands

    with tempfile.TemporaryDirectory(prefix="belady-node-") as folder:
        environment = {"BELADY_NODE_DIR": folder}
        os.environ |= environment
        belady = context.binary("belady")
        start = [belady, "node", "start", "--cache", f"ram:{cache}B", "--threads", THREADS]
        run(context.commands, start)
        try:
            with mount(Commands(), context.binary("slowfs"), data, HDMLP_4) as at:
                job = {"folder": str(at.path), "seeds": seeds, "staging": JOB_STAGING}
                told = context.loader("jobs.py", json.dumps(job))
                return at.stats()["bytes"], max(told.json["seconds"])
        finally:
            run(context.commands, [belady, "node", "stop"])
            del os.environ["BELADY_NODE_DIR"]
