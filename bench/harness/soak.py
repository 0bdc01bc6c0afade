"""Ten million samples under faults: exact epochs, and no growth of memory or descriptors.

Memory is sampled at the start of each epoch. After the warm-up, in which the ring and the tiers
are filled, a line is fitted through the epochs that follow (least squares). A leak of a byte a
sample has a slope of nearly 1 MiB for a million samples, the least that is called growth;
`soak --leak 4` shows that a leak is found.
"""

import statistics

from .process import run
from .table import Section, mib, seconds, size, spread, verdict, whole

SAMPLES = 10_000_000
# MiB of growth for a million samples.
MOST_GROWTH = 1.0


def soak(context):
    command = [context.binary("examples/soak"), "--samples", SAMPLES, "--json"]
    return judge([run(context.commands, command).json for _ in range(context.runs)])


def judge(runs):
    """The worst run is judged."""
    section = Section(["what", "seen", ""])
    samples = [result["samples"] for result in runs]
    section.row(
        "samples delivered",
        spread(samples, whole),
        verdict(min(samples) >= SAMPLES, f"{SAMPLES:,}"),
    )
    section.row("bytes delivered", spread([result["bytes"] for result in runs], size), "")
    exact = all(result["exact"] for result in runs)
    section.row("exact permutations", f"{exact}", verdict(exact, "every epoch"))
    for fault in runs[0]["faults"]:
        counts = [result["faults"][fault] for result in runs]
        section.row(
            f"fault: {fault}",
            spread(counts, whole),
            verdict(min(counts) >= 1_000, "at least 1,000"),
        )
    add_memory(section, runs)
    add_descriptors(section, runs)
    first = runs[0]
    section.note(
        f"Dataset: {first['dataset']:,} samples, {size(first['dataset_bytes'])}, read in "
        f"{first['epochs']} epochs of which the first {first['warm_up_epochs']} warm up; "
        f"{spread([result['seconds'] for result in runs], seconds)}. Memory is RssAnon + RssShmem at each epoch's start "
        "and at the end. Growth is the slope of the line with the least squares through all values after the warm-up."
    )
    return section


def add_memory(section, runs):
    after = [result["memory"][result["warm_up_epochs"]] for result in runs]
    end = [result["memory"][-1] for result in runs]
    section.row(
        "memory: after the warm-up, at the end", f"{spread(after, mib)}, {spread(end, mib)}", ""
    )
    slopes = [growth(result) for result in runs]
    section.row(
        "growth, for a million samples",
        spread(slopes, lambda slope: f"{slope:+.2f} MiB"),
        verdict(max(slopes) <= MOST_GROWTH, f"at most {MOST_GROWTH:g} MiB"),
    )
    allowed = runs[0]["quotas"] + (64 << 20) + 16 * runs[0]["dataset"]
    most = [max(result["memory"]) for result in runs]
    section.row(
        "most memory, and what is allowed",
        f"{spread(most, mib)}, {mib(allowed)}",
        verdict(max(most) <= allowed, "quotas + 64 MiB + 16 B a sample"),
    )


def growth(result):
    """In MiB for a million samples. The last value is taken at the end of the run, the others at
    epochs' starts."""
    warm, memory = result["warm_up_epochs"], result["memory"]
    millions = [epoch * result["dataset"] / 1e6 for epoch in range(warm, len(memory))]
    return statistics.linear_regression(millions, memory[warm:]).slope / (1 << 20)


def add_descriptors(section, runs):
    early = [max(result["descriptors"][: result["warm_up_epochs"] + 1]) for result in runs]
    late = [max(result["descriptors"][result["warm_up_epochs"] + 1 :]) for result in runs]
    grown = any(after > before for before, after in zip(early, late, strict=True))
    section.row(
        "descriptors: most in the warm-up, most after it",
        f"{spread(early, whole)}, {spread(late, whole)}",
        verdict(not grown, "no growth"),
    )
