"""Sections about waits, memory and faults."""

from .context import MANY, SAMPLE
from .mount import Mount
from .slow import CURVE
from .table import Section, mib, size, spread, verdict

BOUNDARY_EPOCHS = 24
# ImageNet-21k.
LARGEST = 14_000_000


def boundaries(context):
    """The wait for an epoch's first batch, beside that for all others."""
    dataset = context.dataset("flat-boundaries", "--samples", 2_000, "--mean", f"{SAMPLE}B")
    section = Section(["source", "boundaries", "first batches: p50, p99, max", "others: p50, p99, max", ""])
    cache = round(0.6 * 2_000 * SAMPLE)
    common = ("--epochs", BOUNDARY_EPOCHS, "--threads", 16, "--staging", f"{64 << 20}B")
    for _ in range(context.runs):
        with Mount(context.commands, context.binary("slowfs"), dataset, CURVE) as at:
            # Four tenths of it come from the source, at a third of what the source gives.
            result = context.read(
                at.path, "flat", *common, "--cache", f"ram:{cache}B", "--consume", "250MB/s"
            ).json
            boundary_row(section, "slowfs, 60 % cached, 250 MB/s", result)
        result = context.read(dataset, "flat", *common, "--consume", "1GB/s").json
        boundary_row(section, "page cache, 1 GB/s", result)
    section.note(
        f"{BOUNDARY_EPOCHS} epochs of 2,000 samples of 110 KB; the very first batch of a run is no "
        "boundary. Each row is a run."
    )
    return section


def boundary_row(section, source, result):
    first, others = result["boundary_wait_us"], result["wait_us"]
    shown = (", ".join(f"{waits[key]:,.0f} µs" for key in ("p50", "p99", "max")) for waits in (first, others))
    good = first["p99"] <= others["p99"]
    section.row(source, BOUNDARY_EPOCHS - 1, *shown, verdict(good, "p99 within p99"))


def many_samples(context):
    """ImageNet's number of samples, as records and as files of their own."""
    yield "records of 1,000 B in 16 files", "records:1000", context.dataset(
        "records-many", "--samples", MANY, "--mean", "1000B", "--layout", "records:16"
    )
    yield "files of 16 B in 1,000 folders", "folder", context.dataset(
        "folder-many", "--samples", MANY, "--mean", "16B", "--layout", "folder:1000"
    )


def first_batch(context):
    """From the start of the loader to its first batch, with a snapshot present."""
    section = Section(["dataset", "first batch, best / median", "first batch, cold listing", ""])
    for name, kind, dataset in many_samples(context):
        common = ("--epochs", 1, "--threads", 4, "--staging", f"{64 << 20}B")
        # The first run makes the snapshot, unless an earlier one has.
        listed = context.read(dataset, kind, *common).json["first_batch_ms"]
        results = [context.read(dataset, kind, *common).json["first_batch_ms"] for _ in range(context.runs)]
        section.row(
            name, spread(results, lambda value: f"{value:.1f} ms"), f"{listed:,.0f} ms",
            verdict(min(results) <= 50, "at most 50 ms"),
        )
    section.note(
        f"{MANY:,} samples. *Cold listing* is the first run of this harness on the dataset; it "
        "lists, unless a snapshot of an earlier run was there."
    )
    return section


def memory(context):
    """Anonymous memory while it runs, beside the quotas."""
    staging, cache = 64 << 20, 256 << 20
    section = Section(["dataset", "seen from outside", "its own figure", "allowed", "beyond the quotas, B a sample", ""])
    for name, kind, dataset in many_samples(context):
        finished = context.read(
            dataset, kind, "--epochs", 2, "--threads", 4, "--staging", f"{staging}B",
            "--cache", f"ram:{cache}B", watch_memory=True,
        )
        # A tier that holds all samples is not full; what it cannot use is not allowed.
        quotas = staging + min(cache, finished.json["epochs"][0]["bytes"])
        allowed = quotas + (64 << 20) + 16 * MANY
        beyond = max(0, finished.anonymous - quotas) / MANY
        section.row(
            name, mib(finished.anonymous), mib(finished.json["anonymous_peak"]), mib(allowed),
            f"{beyond:.1f}", verdict(finished.anonymous <= allowed, "quotas + 64 MiB + 16 B a sample"),
        )
    for samples in (MANY, LARGEST):
        result = context.example("memory", "--samples", samples, "--json").json
        section.row(
            f"{samples:,} made-up samples of 64 B", "", mib(result["peak"]), mib(result["allowed"]),
            f"{result['beyond_quotas_a_sample']:.1f}",
            verdict(result["peak"] <= result["allowed"], "quotas + 64 MiB + 16 B a sample"),
        )
    section.note(
        f"{MANY:,} samples, 2 epochs, staging {mib(staging)}, RAM tier {mib(cache)}. Seen from "
        "outside: the largest RssAnon + RssShmem of the process, looked at every 20 ms. The RAM tier counts with what the dataset can fill of it. "
        "Made-up samples: 4 epochs, a RAM and a disk tier of a quarter of the dataset each, without "
        "the catalog, which is mapped where there are files."
    )
    return section


def soak(context):
    """Ten million samples under faults."""
    result = context.example("soak", "--samples", 10_000_000, "--json").json
    section = Section(["what", "seen", ""])
    faults = result["faults"]
    section.row("samples delivered", f"{result['samples']:,}", verdict(result["samples"] >= 10**7, "10 million"))
    section.row("bytes delivered", size(result["bytes"]), "")
    section.row("exact permutations", f"{result['exact']}", verdict(result["exact"], "every epoch"))
    for fault, count in faults.items():
        section.row(f"fault: {fault}", f"{count:,}", verdict(count >= 1_000, "at least 1,000"))
    for what, first, last, shown in (
        ("anonymous memory, early and at the end", result["memory"][0], result["memory"][1], mib),
        ("descriptors, early and at the end", *result["descriptors"], str),
    ):
        section.row(what, f"{shown(first)}, {shown(last)}", verdict(last <= 1.05 * first, "no growth"))
    return section
