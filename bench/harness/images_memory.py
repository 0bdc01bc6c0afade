"""Memory of loaders of images: at its peak, and over many epochs."""

import statistics

from .images_loaders import IMAGES, LOADERS, STAGING, Data, present
from .python_memory import TreeWatcher
from .table import Section, mib, spread, verdict

MIB = 1 << 20
# Beyond the quotas.
ALLOWED = 300_000_000
# Images and epochs: ten batches an epoch, and one. What leaks with each image shows in both, what leaks with each epoch in the
# second.
SHAPES = ((640, 50), (64, 1_000))
# The batches that are under way are touched one after another; after this part of the epochs all were.
WARM_UP = 1 / 5
# Over all epochs that follow.
MOST_GROWTH = MIB
# Bytes an image, a cache line: 3.1 MiB over the epochs of the longer shape.
LEAK = 64


def peak(context):
    """The largest resident set of everything that a loader runs."""
    loaders, missing = present(context, [one for one in LOADERS if one.threads == 2 or one.ours])
    data = Data(context, IMAGES)
    section = Section(
        ["loader", "threads", "peak PSS of all processes", "peak RSS", "beyond the quotas", ""]
    )
    for loader in loaders:
        runs = [data.run(loader, "--seconds", 0, watch=TreeWatcher) for _ in range(context.runs)]
        tree, own = [run.memory for run in runs], [run.rss for run in runs]
        beyond, judged = "", ""
        if loader.ours:
            more = max(own) - STAGING - (data.bytes if loader.cached else 0)
            beyond, judged = f"{more / 1e6:,.0f} MB", verdict(more <= ALLOWED, "at most 300 MB")
        section.row(
            loader.name,
            loader.threads,
            spread(tree, mib),
            spread(own, mib) if loader.ours else "",
            beyond,
            judged,
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
    ours = next(one for one in LOADERS if one.ours and one.threads == 2)
    section = Section(
        [
            "images",
            "epochs",
            "staging buffer, least and most",
            "all else after the warm-up",
            "at the end",
            "its line's growth",
            "",
        ]
    )
    for count, epochs in SHAPES:
        data = Data(context, count)
        for _ in range(context.runs):
            grown = grow(section, data, ours, epochs)
            section.rows[-1].append(verdict(grown <= MOST_GROWTH, "at most 1 MiB"))
    grown = grow(section, data, ours, epochs, "--leak", LEAK)
    section.rows[-1][0] += f", {LEAK} B leaked with each"
    section.rows[-1].append(verdict(grown > MOST_GROWTH, "the leak is seen: more than 1 MiB"))
    section.note(
        f"{ours.threads} threads; a row is a run. Anonymous and shared memory of the process after each epoch, all mappings in "
        f"one look; growth is that of the line with the least squares through all epochs after the first {WARM_UP:.0%}. The "
        f"staging buffer, of {mib(STAGING)}, stands apart: it is touched as it is needed, and given back between epochs."
    )
    return section


def grow(section, data, loader, epochs, *options):
    """Runs it, adds a row without a verdict, and says by how many bytes all but the staging buffer has grown."""
    found = data.run(loader, "--seconds", 0, "--epochs", epochs, *options).json
    begin = round(epochs * WARM_UP)
    staging, other = found["staging"][begin:], found["other"][begin:]
    grown = statistics.linear_regression(range(len(other)), other).slope * (len(other) - 1)
    section.row(
        data.count,
        f"{epochs:,}",
        f"{mib(min(staging))}, {mib(max(staging))}",
        f"{other[0] / MIB:,.1f} MiB",
        f"{other[-1] / MIB:,.1f} MiB",
        f"{grown / MIB:+.2f} MiB",
    )
    return grown
