"""The wait for an epoch's first batch, beside that for all others.

Epochs are short, so that there are many boundaries in a run: the p99 of some twenty values is
the largest of them, and says more about the machine's scheduler than about the loader. What is
judged is the p99 over all boundaries of a run. The first twenty are shown as well.
"""

import math

from .context import SAMPLE
from .mount import Mount
from .slow import CURVE
from .table import Section, verdict

BOUNDARIES = 200
FEW = 20
SAMPLES = 1_000
# Five batches of the sixteen of an epoch: no epoch is ready before the one before it ends.
STAGING = 32 << 20


def boundaries(context):
    dataset = context.dataset("flat-boundaries", "--samples", SAMPLES, "--mean", f"{SAMPLE}B")
    section = Section(
        [
            "source",
            "boundaries",
            "first batches: p50, p99, max",
            "others: p50, p99, max",
            "first batches above the others' p99",
            f"first {FEW}: p99",
            "",
        ]
    )
    cache = round(0.6 * SAMPLES * SAMPLE)
    common = ("--epochs", BOUNDARIES + 1, "--threads", 16, "--staging", f"{STAGING}B")
    for _ in range(context.runs):
        with Mount(context.commands, context.binary("slowfs"), dataset, CURVE) as at:
            # Four tenths of it come from the source, at a third of what the source gives.
            result = context.read(
                at.path, "flat", *common, "--cache", f"ram:{cache}B", "--consume", "250MB/s"
            ).json
            add_row(section, "slowfs, 60 % cached, 250 MB/s", result)
        result = context.read(dataset, "flat", *common, "--consume", "1GB/s").json
        add_row(section, "page cache, 1 GB/s", result)
    section.note(
        f"{BOUNDARIES + 1} epochs of {SAMPLES:,} samples of 110 KB in batches of 64, staging "
        f"{STAGING >> 20} MiB; the very first batch of a run is no boundary. Each row is a run. If "
        "first batches were like all others, 1 % of them would be above the others' p99. The first "
        f"{FEW} boundaries alone, whose p99 is the longest of them, are shown and not judged."
    )
    return section


def add_row(section, source, result):
    waits, others = first_waits(result), result["wait_us"]
    above = sum(wait > others["p99"] for wait in waits)
    section.row(
        source,
        len(waits),
        three(quantile(waits, 0.5), quantile(waits, 0.99), max(waits)),
        three(others["p50"], others["p99"], others["max"]),
        f"{above} ({100 * above / len(waits):.1f} %)",
        f"{quantile(waits[:FEW], 0.99):,} µs",
        verdict(quantile(waits, 0.99) <= others["p99"], "p99 within p99"),
    )


def first_waits(result):
    """In microseconds, of all epochs but the first."""
    return [epoch["first_wait_us"] for epoch in result["epochs"][1:]]


def quantile(values, share):
    """The smallest value that at least this share of all does not exceed, as belady counts."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def three(*waits):
    return ", ".join(f"{wait:,} µs" for wait in waits)
