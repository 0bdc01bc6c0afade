"""Ten million samples under faults: exact epochs, and no growth of memory or descriptors.

Memory is looked at in each epoch's start. After the warm-up, in which the ring and the tiers
are filled, a line is fitted through the epochs that follow (least squares). A leak of a byte a
sample has a slope of nearly 1 MiB for a million samples, the least that is called growth;
`soak --leak 4` shows that a leak is found.
"""

import statistics

from .process import run
from .table import Section, mib, size, verdict

SAMPLES = 10_000_000
# MiB of growth for a million samples.
MOST_GROWTH = 1.0


def soak(context):
    command = [context.binary("examples/soak"), "--samples", SAMPLES, "--json"]
    return judge(run(context.commands, command).json)


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
        "end. Growth is the slope of the line with the least squares through all values after the "
        "warm-up."
    )
    return section


def add_memory(section, result):
    memory, warm = result["memory"], result["warm_up_epochs"]
    section.row("memory: after the warm-up, at the end", f"{mib(memory[warm])}, {mib(memory[-1])}", "")
    slope = growth(result)
    section.row("growth, for a million samples", f"{slope:+.2f} MiB",
                verdict(slope <= MOST_GROWTH, f"at most {MOST_GROWTH:g} MiB"))
    allowed = result["quotas"] + (64 << 20) + 16 * result["dataset"]
    section.row("most memory, and what is allowed", f"{mib(max(memory))}, {mib(allowed)}",
                verdict(max(memory) <= allowed, "quotas + 64 MiB + 16 B a sample"))


def growth(result):
    """In MiB for a million samples. The last value is taken at the end of the run, the others at
    epochs' starts."""
    warm, memory = result["warm_up_epochs"], result["memory"]
    millions = [epoch * result["dataset"] / 1e6 for epoch in range(warm, len(memory))]
    return statistics.linear_regression(millions, memory[warm:]).slope / (1 << 20)


def add_descriptors(section, result):
    files, warm = result["descriptors"], result["warm_up_epochs"]
    early, late = max(files[: warm + 1]), max(files[warm + 1:])
    section.row("descriptors: most in the warm-up, most after it", f"{early}, {late}",
                verdict(late <= early, "no growth"))
