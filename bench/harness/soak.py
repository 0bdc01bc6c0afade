"""Ten million samples under faults: exact epochs, and no growth of memory or descriptors.

Memory is looked at in each epoch's start. After the warm-up, in which the ring and the tiers
are filled, a line is fitted through the epochs that follow (least squares). A leak of a byte a
sample has a slope of nearly 1 MiB for a million samples, the least that is called growth;
`soak --leak 4` shows that a leak is found.

A second run tells a leak from what the allocator keeps of freed memory: there, glibc is told to
give large blocks back at once.
"""

import statistics

from .process import run
from .table import Section, mib, size, verdict

SAMPLES = 10_000_000
# MiB of growth for a million samples.
MOST_GROWTH = 1.0


# Setting the threshold also keeps glibc from raising it, up to 32 MiB.
GIVES_BACK = "MALLOC_MMAP_THRESHOLD_=131072"


def soak(context):
    command = [context.binary("examples/soak"), "--samples", SAMPLES, "--json"]
    plain = run(context.commands, command).json
    lean = run(context.commands, ["env", GIVES_BACK, *command]).json
    return judge(plain, lean)


def judge(plain, lean):
    section = Section(["what", "seen", ""])
    section.row("samples delivered", f"{plain['samples']:,}",
                verdict(plain["samples"] >= SAMPLES, f"{SAMPLES:,}"))
    section.row("bytes delivered", size(plain["bytes"]), "")
    section.row("exact permutations", f"{plain['exact']}", verdict(plain["exact"], "every epoch"))
    for fault, count in plain["faults"].items():
        section.row(f"fault: {fault}", f"{count:,}", verdict(count >= 1_000, "at least 1,000"))
    add_memory(section, "", plain)
    add_memory(section, ", large blocks given back", lean)
    add_descriptors(section, plain)
    section.note(
        f"Dataset: {plain['dataset']:,} samples, {size(plain['dataset_bytes'])}, read in "
        f"{plain['epochs']} epochs of which the first {plain['warm_up_epochs']} warm up; "
        f"{plain['seconds']:.0f} s. Memory is RssAnon + RssShmem at each epoch's start and at the "
        "end. Growth is the slope of the line with the least squares through all values after the "
        f"warm-up. *Large blocks given back*: a second run, with `{GIVES_BACK}`."
    )
    return section


def add_memory(section, how, result):
    memory, warm = result["memory"], result["warm_up_epochs"]
    section.row(f"memory{how}: after the warm-up, at the end", f"{mib(memory[warm])}, {mib(memory[-1])}", "")
    slope = growth(result)
    section.row(f"growth{how}, for a million samples", f"{slope:+.2f} MiB",
                verdict(slope <= MOST_GROWTH, f"at most {MOST_GROWTH:g} MiB"))
    allowed = result["quotas"] + (64 << 20) + 16 * result["dataset"]
    section.row(f"most memory{how}, and what is allowed", f"{mib(max(memory))}, {mib(allowed)}",
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
