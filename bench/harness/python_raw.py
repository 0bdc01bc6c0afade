"""Bytes from memory into a Python loop."""

import dataclasses
import statistics

from .context import SAMPLE
from .process import CommandFailed
from .table import Section, spread, verdict, whole

NAMES = {
    "memory": "none: a list of buffers",
    "belady-lend": "belady, lent",
    "belady-slots": "belady, slots",
    "belady-torch": "belady, torch tensors",
    "ffcv-1": "FFCV, 1 worker",
    "ffcv-2": "FFCV, 2 workers",
    "torch-0": "torch DataLoader, no workers",
    "torch-2": "torch DataLoader, 2 workers",
}
OURS = ("belady-lend", "belady-slots", "belady-torch")
SMALL_TARGET = 500_000


@dataclasses.dataclass
class Shape:
    """A dataset, and how it is read."""

    name: str
    samples: int
    size: int
    layout: str
    form: str
    batch: int
    loaders: tuple
    hashed: tuple


SHAPES = (
    Shape("flat-110k", 10_000, SAMPLE, "flat", "flat", 64, tuple(NAMES), (False, True)),
    # Only belady has a target here: not every baseline runs in every way.
    Shape(
        "records-1k",
        200_000,
        1_000,
        "records:1",
        "records:1000",
        256,
        ("memory", *OURS, "ffcv-1", "torch-2"),
        (False,),
    ),
)


def raw(context):
    section = Section(
        [
            "samples",
            "the loop",
            "loader",
            "samples/s",
            "a CPU-second",
            "× FFCV",
            "× torch, 2 workers",
            "",
        ]
    )
    missing = context.ffcv_missing()
    for shape in SHAPES:
        dataset = context.dataset(
            shape.name,
            "--samples",
            shape.samples,
            "--mean",
            f"{shape.size}B",
            "--layout",
            shape.layout,
        )
        beton = context.folder / f"{shape.name}.beton"
        if missing is None:
            context.loader("beton.py", dataset, beton, "--size", shape.size)
        loaders = [
            loader for loader in shape.loaders if missing is None or not loader.startswith("ffcv")
        ]
        for hashed in shape.hashed:
            rows(
                section,
                measure(context, shape, loaders, dataset, beton, hashed),
                shape.size,
                hashed,
            )
    section.note(
        "Runs are of two seconds or one epoch after an epoch that is not counted. All loaders "
        "delivered the same bytes. *none*: slices of one block of memory, shuffled in Python; what the loop and the "
        "machine allow. *lent*: buffers on the RAM "
        "tier itself, read-only. *slots*: each sample copied once, into a slot of the staging buffer "
        "that the loop may write to. *torch tensors*: a batch as one tensor on such slots. The loop takes "
        "the length of every sample, or the XXH3 of its bytes (`xxhash`, 64 bit), in all loaders alike. "
        "FFCV: a field of bytes, `os_cache=True`. torch: a file a sample (1 KB: mapped records), "
        "batches stacked by its default, workers that live across epochs. All files are in the page cache. "
        "The columns with × compare medians of samples/s, and in brackets of samples a CPU-second; FFCV's and "
        "torch's are those of its better number of workers."
    )
    if missing:
        section.note(missing)
    return section


def measure(context, shape, loaders, dataset, beton, hashed):
    """Reports of all runs by loader; in turns, so that a busy neighbour meets all."""
    found = {loader: [] for loader in loaders}
    for _ in range(context.runs):
        for loader in loaders:
            data = beton if loader.startswith("ffcv") else dataset
            options = ["--size", shape.size, "--batch", shape.batch]
            if loader in OURS:
                options += [
                    "--format",
                    shape.form,
                    "--cache",
                    f"ram:{2 * shape.samples * shape.size}B",
                ]
            elif loader.startswith("torch"):
                options += ["--format", shape.form]
            if hashed:
                options.append("--hash")
            found[loader].append(context.loader("raw.py", loader, data, *options).json)
    if len({run["sum"] for runs in found.values() for run in runs}) != 1:
        raise CommandFailed(f"loaders did not deliver the same bytes of {dataset}")
    return found


def rows(section, found, size, hashed):
    rates = {
        loader: (
            [run["samples"] / run["seconds"] for run in runs],
            [run["samples"] / max(run["cpu_seconds"], 0.01) for run in runs],
        )
        for loader, runs in found.items()
    }
    speeds = {loader: tuple(map(statistics.median, both)) for loader, both in rates.items()}
    ffcv = best(speeds, "ffcv")
    torch = best(speeds, "torch-2")
    for loader, speed in speeds.items():
        section.row(
            f"{size:,} B",
            "hashes" if hashed else "len",
            NAMES[loader],
            *(spread(values, whole) for values in rates[loader]),
            ratio(speed, ffcv),
            ratio(speed, torch),
            judged(loader, size, speed, ffcv, torch),
        )


def best(speeds, prefix):
    """The best speed, and the best a CPU-second, of loaders whose names begin so."""
    chosen = [speed for loader, speed in speeds.items() if loader.startswith(prefix)]
    return tuple(map(max, zip(*chosen, strict=True))) if chosen else None


def ratio(speed, baseline):
    if baseline is None:
        return ""
    return f"{speed[0] / baseline[0]:.2f} ({speed[1] / baseline[1]:.2f})"


def judged(loader, size, speed, ffcv, torch):
    if loader not in OURS:
        return ""
    if size != SAMPLE:
        return verdict(speed[0] >= SMALL_TARGET, f"{SMALL_TARGET:,}/s")
    targets = [("10 × torch", 10, torch)] + ([("2 × FFCV", 2, ffcv)] if ffcv else [])
    return ", ".join(
        verdict(
            all(ours >= factor * theirs for ours, theirs in zip(speed, baseline, strict=True)), text
        )
        for text, factor, baseline in targets
    )
