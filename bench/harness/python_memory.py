"""Memory of everything that a loader takes, its processes together."""

import statistics
import sys

from .context import MANY, SAMPLE
from .process import ROOT, MemoryWatcher
from .python_raw import NAMES
from .table import Section, mib, spread, verdict

sys.path.insert(0, str(ROOT / "bench" / "loaders"))

from tree import proportional_bytes


class TreeWatcher(MemoryWatcher):
    """PSS of a process and all it started: what they share is counted once."""

    # Looking takes milliseconds a process.
    interval = 0.1

    def held(self):
        return proportional_bytes(self.pid)


STAGING = 64 << 20
CACHE = 512 << 20


def memory(context):
    section = Section(["dataset", "loader", "peak PSS of all processes", ""])
    large = context.dataset("flat-110k", "--samples", 10_000, "--mean", f"{SAMPLE}B")
    many = context.dataset(
        "folder-many", "--samples", MANY, "--mean", "16B", "--layout", "folder:1000"
    )
    shapes = (
        ("10,000 files of 110 KB", large, "flat", SAMPLE, 64, ("", f"ram:{CACHE}B")),
        (f"{MANY:,} files of 16 B", many, "folder", 16, 256, ("",)),
    )
    for name, data, form, size, batch, caches in shapes:
        common = (data, "--size", size, "--batch", batch, "--seconds", 0, "--format", form)
        torch = peaks(context, "torch-2", *common)
        section.row(name, NAMES["torch-2"], spread(torch, mib), "")
        for cache in caches:
            options = ("--staging", f"{STAGING}B", *(("--cache", cache) if cache else ()))
            ours = peaks(context, "belady-torch", *common, *options)
            kept = mib(CACHE) if cache else "no"
            judged = (
                "" if cache else verdict(max(ours) <= statistics.median(torch), "at most torch's")
            )
            section.row(name, f"belady, torch tensors, {kept} cache", spread(ours, mib), judged)
    section.note(
        f"The largest sum of PSS over the whole tree, looked at every {TreeWatcher.interval * 1e3:.0f} ms; "
        f"2 epochs. belady's largest run is judged by torch's median. Both programs import torch and get tensors. Staging "
        f"{mib(STAGING)}; torch's workers prefetch 2 batches each."
    )
    return section


def peaks(context, loader, *options):
    return [
        context.loader("raw.py", loader, *options, watch=TreeWatcher).memory
        for _ in range(context.runs)
    ]
