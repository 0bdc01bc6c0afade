"""Memory of everything that a loader takes, its processes together."""

import sys

from .context import MANY, SAMPLE
from .process import ROOT, MemoryWatcher
from .python_raw import NAMES
from .table import Section, mib, verdict

sys.path.insert(0, str(ROOT / "bench" / "loaders"))

from tree import proportional_bytes  # noqa: E402


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
    many = context.dataset("folder-many", "--samples", MANY, "--mean", "16B", "--layout", "folder:1000")
    shapes = (
        ("10,000 files of 110 KB", large, "flat", SAMPLE, 64, ("", f"ram:{CACHE}B")),
        (f"{MANY:,} files of 16 B", many, "folder", 16, 256, ("",)),
    )
    for name, data, form, size, batch, caches in shapes:
        common = (data, "--size", size, "--batch", batch, "--seconds", 0, "--format", form)
        torch = peak(context, "torch-2", *common)
        section.row(name, NAMES["torch-2"], mib(torch), "")
        for cache in caches:
            options = ("--staging", f"{STAGING}B", *(("--cache", cache) if cache else ()))
            ours = peak(context, "belady-torch", *common, *options)
            kept = mib(CACHE) if cache else "no"
            judged = "" if cache else verdict(ours <= torch, "at most torch's")
            section.row(name, f"belady, torch tensors, {kept} cache", mib(ours), judged)
    section.note(
        f"The largest sum of PSS over the whole tree, looked at every {TreeWatcher.interval * 1e3:.0f} ms, the "
        f"largest of the runs; 2 epochs. Both programs import torch and get tensors. Staging "
        f"{mib(STAGING)}; torch's workers prefetch 2 batches each."
    )
    return section


def peak(context, loader, *options):
    return max(
        context.loader("raw.py", loader, *options, watch=TreeWatcher).memory for _ in range(context.runs)
    )
