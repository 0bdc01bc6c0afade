"""A real training from a slow source: the demo's program, longer, several times."""

import statistics

from .mount import Mount
from .process import ROOT, CommandFailed, run
from .python_context import PYTHON
from .table import Section, percent, rate, seconds, size, spread, verdict

DEMO = ROOT / "python" / "demo"
PICTURES = 6_000
EPOCHS = 6
CACHED = 0.6
# As in the demo: the source needs so much longer for an epoch than training does.
SLOWER = 2.2


def train(context):
    folder = context.folder / "pictures"
    run(context.commands, [PYTHON, DEMO / "images.py", folder, PICTURES])
    total = sum(file.stat().st_size for file in folder.rglob("*.png"))
    cache = round(CACHED * total)
    at_hand = min(
        program(context, folder, "torch", "--epochs", 2)["epochs"][-1]["seconds"] for _ in range(context.runs)
    )
    speed = total / at_hand / SLOWER
    runs = {"torch": [], "belady": []}
    for _ in range(context.runs):
        for loader, found in runs.items():
            cached = ("--cache", f"{cache}B") if loader == "belady" else ()
            found.append(slow(context, folder, speed, loader, *cached))
    section = Section(
        ["loader", "epoch 1", "later epochs", "stall, epoch 1", "stall, later", "source bytes, epoch 1", "source bytes, later", ""]
    )
    bound = max(0, total - cache)
    for loader, found in runs.items():
        row(section, loader, found, bound, total)
    summarise(section, runs, at_hand, speed, total, cache, bound)
    return section


def program(context, folder, loader, *options):
    return context.python(DEMO / "training.py", folder, "--loader", loader, *options).json


def slow(context, folder, speed, loader, *options):
    with Mount(context.commands, context.binary("slowfs"), folder, {1: f"{speed / 1e6:.3f}"}) as at:
        counter = ("--counter", at.path / ".slowfs-stats")
        return program(context, at.path, loader, "--epochs", EPOCHS, *counter, *options)


def later(run, key):
    return statistics.mean(epoch[key] for epoch in run["epochs"][1:])


def stall(epochs):
    return sum(epoch["waited"] for epoch in epochs) / sum(epoch["seconds"] for epoch in epochs)


def source_later(run):
    """Bytes an epoch after the first one."""
    first, last = run["epochs"][0]["source_bytes"], run["epochs"][-1]["source_bytes"]
    return (last - first) / (EPOCHS - 1)


def row(section, loader, found, bound, total):
    over = (max(map(source_later, found)) - bound) / total
    judged = verdict(over <= 0.01, "bytes within 1 % of the bound") if loader == "belady" else ""
    section.row(
        {"torch": "torch DataLoader, 2 workers", "belady": "belady"}[loader],
        spread([run["epochs"][0]["seconds"] for run in found], seconds),
        spread([later(run, "seconds") for run in found], seconds),
        percent(statistics.median(stall(run["epochs"][:1]) for run in found)),
        percent(statistics.median(stall(run["epochs"][1:]) for run in found)),
        size(max(run["epochs"][0]["source_bytes"] for run in found)),
        size(max(map(source_later, found))), judged,
    )


def summarise(section, runs, at_hand, speed, total, cache, bound):
    curves = {tuple(run["losses"]) for found in runs.values() for run in found}
    if len(curves) != 1:
        raise CommandFailed("the loss curves of torch's DataLoader and belady differ")
    (curve,) = curves
    gain = min(later(run, "seconds") for run in runs["torch"]) / min(later(run, "seconds") for run in runs["belady"])
    section.note(
        f"After the first epoch {gain:.2f} times as fast. All {len(curve)} losses of all runs are equal to the last "
        f"bit, {verdict(True, 'the same curve')}."
    )
    section.note(
        f"{PICTURES:,} PNG pictures, {size(total)}; a CNN of three layers, one thread, Adam, batch 32, {EPOCHS} "
        f"epochs. An epoch takes {seconds(at_hand)} with all files in the page cache (torch, 2 workers); the "
        f"source gives {rate(speed)}, {SLOWER} times less than that needs. belady has {size(cache)} of RAM "
        f"({percent(CACHED)}) and decodes in threads; without a cache it would read all, with it at least "
        f"{size(bound)} an epoch. Bytes are slowfs's counters; what is read at an epoch's end for the next one "
        "counts for the earlier. Best / median of the runs; stalls are medians, bytes the worst run. torch keeps "
        "nothing from epoch to epoch; for a page cache of the same size see [From a slow source](#from-a-slow-source)."
    )
