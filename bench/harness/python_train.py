"""A real training from a slow source: the demo's program, longer, several times."""

import statistics

from .cgroup import MemoryGroup, NoCgroup
from .mount import Mount
from .process import ROOT, CommandFailed, run
from .python_context import PYTHON
from .slow import in_turns
from .table import Section, percent, rate, seconds, size, spread, times, verdict

DEMO = ROOT / "python" / "demo"
PICTURES = 3_000
EPOCHS = 5
CACHED = 0.6
# As in the demo: the source needs so much longer for an epoch than training does.
SLOWER = 2.2
# As the program has it.
STAGING = 8_000_000
NAMES = {
    "torch": "torch DataLoader, 2 workers",
    "torch-pages": "torch DataLoader, 2 workers, page cache",
    "belady": "belady",
}


def train(context):
    folder = context.folder / "pictures"
    run(context.commands, [PYTHON, DEMO / "images.py", folder, PICTURES])
    total = sum(file.stat().st_size for file in folder.rglob("*.png"))
    cache = round(CACHED * total)
    at_hand = statistics.median(
        program(context, folder, "torch", "--epochs", 2)["epochs"][-1]["seconds"]
        for _ in range(context.runs)
    )
    source = Source(context, folder, total / at_hand / SLOWER)
    found = in_turns(
        {
            "torch": source.torch,
            "torch-pages": lambda: source.torch_with_pages(cache + STAGING),
            "belady": lambda: source.belady(cache),
        },
        context.runs,
    )
    section = Section(
        [
            "loader",
            "epoch 1",
            "later epochs",
            "belady is",
            "stall, epoch 1",
            "stall, later",
            "source bytes, epoch 1",
            "source bytes, later",
            "",
        ]
    )
    runs = {name: given for name, given in found.items() if given is not None}
    for name, given in runs.items():
        row(section, name, given, runs["belady"], max(0, total - cache), total)
    summarise(section, runs, at_hand, source, total, cache)
    return section


class Source:
    """The pictures behind a slow file system, and programs that train on them."""

    def __init__(self, context, folder, speed):
        self.context, self.folder, self.speed = context, folder, speed
        # What torch's processes take without pages of the dataset.
        self.used = 0

    def torch(self):
        try:
            with MemoryGroup(self.context.commands) as group:
                found = self._run("torch", inside=group.inside)
        except NoCgroup:
            return self._run("torch")
        self.used = max(self.used, group.held.used)
        return found

    def torch_with_pages(self, more):
        """Its processes, and the kernel's pages for them, in what they need and `more` bytes."""
        with MemoryGroup(self.context.commands, self.used + more) as group:
            found = self._run("torch", mount=("--page-cache",), inside=group.inside)
        return {**found, "held": group.held, "limit": group.limit}

    def belady(self, cache):
        return self._run("belady", "--cache", f"{cache}B")

    def _run(self, loader, *options, mount=(), **how):
        slowfs = self.context.binary("slowfs")
        with Mount(
            self.context.commands, slowfs, self.folder, {1: f"{self.speed / 1e6:.3f}"}, *mount
        ) as at:
            counter = ("--counter", at.path / ".slowfs-stats")
            return program(
                self.context, at.path, loader, "--epochs", EPOCHS, *counter, *options, **how
            )


def program(context, folder, loader, *options, **how):
    return context.python(DEMO / "training.py", folder, "--loader", loader, *options, **how).json


def later(run, key):
    return statistics.mean(epoch[key] for epoch in run["epochs"][1:])


def typical_epoch(runs):
    return statistics.median(later(run, "seconds") for run in runs)


def stall(epochs):
    return sum(epoch["waited"] for epoch in epochs) / sum(epoch["seconds"] for epoch in epochs)


def source_later(run):
    """Bytes an epoch after the first one."""
    first, last = run["epochs"][0]["source_bytes"], run["epochs"][-1]["source_bytes"]
    return (last - first) / (EPOCHS - 1)


def row(section, name, found, ours, bound, total):
    given = list(map(source_later, found))
    over = (max(given) - bound) / total
    judged = verdict(over <= 0.01, "bytes within 1 % of the bound") if name == "belady" else ""
    gain = typical_epoch(found) / typical_epoch(ours)
    section.row(
        NAMES[name],
        spread([run["epochs"][0]["seconds"] for run in found], seconds),
        spread([later(run, "seconds") for run in found], seconds),
        "" if name == "belady" else times(gain),
        spread([stall(run["epochs"][:1]) for run in found], percent),
        spread([stall(run["epochs"][1:]) for run in found], percent),
        spread([run["epochs"][0]["source_bytes"] for run in found], size),
        spread(given, size),
        judged,
    )


def summarise(section, runs, at_hand, source, total, cache):
    curves = {tuple(run["losses"]) for found in runs.values() for run in found}
    if len(curves) != 1:
        raise CommandFailed("the loss curves of torch's DataLoader and belady differ")
    (curve,) = curves
    section.note(
        f"All {len(curve)} losses of all runs are equal to the last bit, {verdict(True, 'the same curve')}."
    )
    section.note(
        f"{PICTURES:,} PNG pictures, {size(total)}; a CNN of three layers, one thread, Adam, batch 32, {EPOCHS} "
        f"epochs. An epoch takes {seconds(at_hand)} with all files in the page cache (torch, 2 workers); the "
        f"source gives {rate(source.speed)}, {SLOWER} times less than that needs. belady has {size(cache)} of RAM "
        f"({percent(CACHED)}) and a staging buffer of {size(STAGING)}, and decodes in threads; without a cache it would "
        f"read all, with it at least {size(max(0, total - cache))} an epoch. Bytes are slowfs's counters; what is read "
        f"at an epoch's end for the next one counts for the earlier. *belady is*: so many times as fast, after the "
        f"first epoch. {page_cache(runs)}"
    )


def page_cache(runs):
    if "torch-pages" not in runs:
        return "torch keeps nothing from epoch to epoch; with page cache it was not measured: there is no memory cgroup."
    found = runs["torch-pages"]
    return (
        "torch keeps nothing from epoch to epoch. In the second row the kernel keeps pages for it, in a memory cgroup "
        f"of {spread([run['limit'] for run in found], size)}: what its processes held without page cache, and belady's RAM and staging. "
        f"Pages that it held at most: {spread([run['held'].pages for run in found], size)}."
    )
