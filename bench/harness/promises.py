"""Sections about a large dataset: its first batch, and the memory it takes."""

import statistics

from .context import MANY
from .process import MemoryWatcher
from .table import Section, mib, spread, verdict

# ImageNet-21k.
LARGEST = 14_000_000


def many_samples(context):
    """ImageNet's number of samples, as records and as files of their own."""
    yield (
        "records of 1,000 B in 16 files",
        "records:1000",
        context.dataset(
            "records-many", "--samples", MANY, "--mean", "1000B", "--layout", "records:16"
        ),
    )
    yield (
        "files of 16 B in 1,000 folders",
        "folder",
        context.dataset(
            "folder-many", "--samples", MANY, "--mean", "16B", "--layout", "folder:1000"
        ),
    )


def first_batch(context):
    """From the start of the loader to its first batch, with a snapshot present."""
    section = Section(["dataset", "first batch", "first batch, cold listing", ""])
    for name, kind, dataset in many_samples(context):
        common = ("--epochs", 1, "--threads", 4, "--staging", f"{64 << 20}B")
        # The first run makes the snapshot, unless an earlier one has.
        listed = context.read(dataset, kind, *common).json["first_batch_ms"]
        results = [
            context.read(dataset, kind, *common).json["first_batch_ms"] for _ in range(context.runs)
        ]
        section.row(
            name,
            spread(results, lambda value: f"{value:.1f} ms"),
            f"{listed:,.0f} ms",
            verdict(statistics.median(results) <= 50, "at most 50 ms"),
        )
    section.note(
        f"{MANY:,} samples. *Cold listing* is the first run of this harness on the dataset; it "
        "lists, unless a snapshot of an earlier run was there."
    )
    return section


def memory(context):
    """Anonymous memory while it runs, beside the quotas."""
    staging, cache = 64 << 20, 256 << 20
    section = Section(
        [
            "dataset",
            "seen from outside",
            "its own figure",
            "allowed",
            "beyond the quotas, B a sample",
            "",
        ]
    )
    promise = "quotas + 64 MiB + 16 B a sample"
    for name, kind, dataset in many_samples(context):
        runs = [
            context.read(
                dataset,
                kind,
                "--epochs",
                2,
                "--threads",
                4,
                "--staging",
                f"{staging}B",
                "--cache",
                f"ram:{cache}B",
                watch=MemoryWatcher,
            )
            for _ in range(context.runs)
        ]
        # A tier that holds all samples is not full; what it cannot use is not allowed.
        quotas = staging + min(cache, runs[0].json["epochs"][0]["bytes"])
        allowed = quotas + (64 << 20) + 16 * MANY
        seen = [finished.memory for finished in runs]
        section.row(
            name,
            spread(seen, mib),
            spread([finished.json["anonymous_peak"] for finished in runs], mib),
            mib(allowed),
            f"{max(0, max(seen) - quotas) / MANY:.1f}",
            verdict(max(seen) <= allowed, promise),
        )
    for samples in (MANY, LARGEST):
        runs = [
            context.example("memory", "--samples", samples, "--json").json
            for _ in range(context.runs)
        ]
        peaks = [result["peak"] for result in runs]
        section.row(
            f"{samples:,} made-up samples of 64 B",
            "",
            spread(peaks, mib),
            mib(runs[0]["allowed"]),
            f"{max(result['beyond_quotas_a_sample'] for result in runs):.1f}",
            verdict(max(peaks) <= runs[0]["allowed"], promise),
        )
    section.note(
        f"{MANY:,} samples, 2 epochs, staging {mib(staging)}, RAM tier {mib(cache)}. Seen from "
        "outside: the largest RssAnon + RssShmem of the process, looked at every 20 ms. The RAM tier counts with what the dataset can fill of it. The largest run is judged. "
        "Made-up samples: 4 epochs, a RAM and a disk tier of a quarter of the dataset each, without "
        "the catalog, which is mapped where there are files."
    )
    return section
