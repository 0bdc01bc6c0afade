"""Ten million samples under faults: exact epochs, and no growth of memory or descriptors.

Memory is looked at in each epoch's start, after a warm-up in which the ring and the tiers are
filled. What is judged for growth is what the program holds: the allocator gives back what was
freed in a few epochs after the warm-up and in the last few, and the medians of both are
compared. A leak of a byte a sample is nearly 1 MiB for a million samples, the least that is
called growth; `soak --leak 4` shows that a leak is found. What the process takes with what its
allocator keeps is judged by the limit on memory, and its slope is shown.
"""

import statistics

from .table import Section, mib, size, verdict

SAMPLES = 10_000_000
# MiB of growth for a million samples.
MOST_GROWTH = 1.0


def soak(context):
    return judge(context.example("soak", "--samples", SAMPLES, "--json").json)


def judge(result):
    section = Section(["what", "seen", ""])
    section.row("samples delivered", f"{result['samples']:,}",
                verdict(result["samples"] >= SAMPLES, f"{SAMPLES:,}"))
    section.row("bytes delivered", size(result["bytes"]), "")
    section.row("exact permutations", f"{result['exact']}", verdict(result["exact"], "every epoch"))
    for fault, count in result["faults"].items():
        section.row(f"fault: {fault}", f"{count:,}", verdict(count >= 1_000, "at least 1,000"))
    add_memory(section, result)
    add_descriptors(section, result)
    section.note(
        f"Dataset: {result['dataset']:,} samples, {size(result['dataset_bytes'])}, read in "
        f"{result['epochs']} epochs of which the first {result['warm_up_epochs']} warm up; "
        f"{result['seconds']:.0f} s. Memory is RssAnon + RssShmem at each epoch's start and at the "
        "end. *Held* is what is left when the allocator has given back what was freed: the median "
        f"of {len(result['held'][0])} epochs after the warm-up, and of the last {len(result['held'][1])}."
    )
    return section


def add_memory(section, result):
    memory, warm = result["memory"], result["warm_up_epochs"]
    early, late = map(statistics.median, result["held"])
    # From the middle of the first group of epochs to the middle of the last.
    millions = (result["epochs"] - warm - len(result["held"][0])) * result["dataset"] / 1e6
    growth = (late - early) / millions / (1 << 20)
    section.row("memory held, after the warm-up and at the end", f"{mib(early)}, {mib(late)}", "")
    section.row("its growth for a million samples", f"{growth:+.2f} MiB",
                verdict(growth <= MOST_GROWTH, f"at most {MOST_GROWTH:g} MiB"))
    allowed = result["quotas"] + (64 << 20) + 16 * result["dataset"]
    section.row("most memory, and what is allowed", f"{mib(max(memory))}, {mib(allowed)}",
                verdict(max(memory) <= allowed, "quotas + 64 MiB + 16 B a sample"))
    section.row("slope with what the allocator keeps, for a million samples", f"{slope(result):+.2f} MiB", "")


def slope(result):
    """Of the line with the least squares through the epochs in which nobody interferes."""
    begin = result["warm_up_epochs"] + len(result["held"][0])
    end = result["epochs"] - len(result["held"][1])
    millions = [epoch * result["dataset"] / 1e6 for epoch in range(begin, end)]
    return statistics.linear_regression(millions, result["memory"][begin:end]).slope / (1 << 20)


def add_descriptors(section, result):
    files, warm = result["descriptors"], result["warm_up_epochs"]
    early, late = max(files[: warm + 1]), max(files[warm + 1:])
    section.row("descriptors: most in the warm-up, most after it", f"{early}, {late}",
                verdict(late <= early, "no growth"))
