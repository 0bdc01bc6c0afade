"""Memory of loaders of images: at its peak, and over many epochs."""

import statistics

from .images_loaders import IMAGES, LOADERS, STAGING, Data, present
from .python_memory import TreeWatcher
from .table import Section, mib, spread, verdict

# Beyond the quotas.
ALLOWED = 300_000_000
FEW, EPOCHS = 640, 50
# The batches that are under way are touched one after another; after these epochs all were.
WARM_UP = 10
# Over all epochs that follow. A leak of a cache line an image would be more.
MOST_GROWTH = 1 << 20


def peak(context):
    """The largest resident set of everything that a loader runs."""
    loaders, missing = present(context, [one for one in LOADERS if one.threads == 2 or one.ours])
    data = Data(context, IMAGES)
    section = Section(["loader", "threads", "peak PSS of all processes", "peak RSS", "beyond the quotas", ""])
    for loader in loaders:
        runs = [data.run(loader, "--seconds", 0, watch=TreeWatcher) for _ in range(context.runs)]
        tree, own = [run.memory for run in runs], [run.rss for run in runs]
        beyond, judged = "", ""
        if loader.ours:
            more = max(own) - STAGING - (data.bytes if loader.cached else 0)
            beyond, judged = f"{more / 1e6:,.0f} MB", verdict(more <= ALLOWED, "at most 300 MB")
        section.row(
            loader.name, loader.threads, spread(tree, mib), spread(own, mib) if loader.ours else "", beyond, judged
        )
    section.note(
        f"Two epochs. PSS: looked at every {TreeWatcher.interval * 1e3:.0f} ms, what processes share is counted "
        "once. RSS: the kernel's own figure, for belady, which is one process; Python, numpy and mapped "
        f"libraries are in it. Quotas: a staging buffer of {mib(STAGING)}, and where there is a RAM tier the "
        f"{mib(data.bytes)} that the files fill of it; beyond them is the largest run. FFCV maps its file, whose pages count."
    )
    for reason in missing:
        section.note(f"Not measured: {reason}.")
    return section


def growth(context):
    """belady alone: memory after every epoch."""
    data = Data(context, FEW)
    ours = next(one for one in LOADERS if one.ours and one.threads == 2)
    section = Section(
        ["run", "staging buffer after the warm-up, at the end", "all else after the warm-up", "at the end", "its line's growth", ""]
    )
    for number in range(context.runs):
        found = data.run(ours, "--seconds", 0, "--epochs", EPOCHS).json
        staging = found["staging"][WARM_UP:]
        rest = [memory - ring for memory, ring in zip(found["memory"][WARM_UP:], staging, strict=True)]
        grown = statistics.linear_regression(range(len(rest)), rest).slope * (len(rest) - 1)
        section.row(
            number + 1, f"{mib(staging[0])}, {mib(staging[-1])}", mib(rest[0]), mib(rest[-1]),
            f"{grown / (1 << 20):+.2f} MiB", verdict(grown <= MOST_GROWTH, "at most 1 MiB"),
        )
    section.note(
        f"{FEW} images, {EPOCHS} epochs, {ours.threads} threads. Anonymous and shared memory of the process after "
        f"each epoch; growth is that of the line with the least squares through all epochs after the first {WARM_UP}. "
        f"The staging buffer stands apart: of its {mib(STAGING)} it takes what was ever needed at once, in pages of 2 MiB."
    )
    return section
