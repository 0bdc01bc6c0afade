"""Calls on files that have a copy: through `belady run` by the dataset's name, and natively by the
copy's own.

A loop of calls runs in one process many times over (bench/calls.c). Native and belady are processes in
turns; `native again` is the same as native, and what it differs by is chance.
"""

import itertools
import statistics

from .process import run
from .table import Section, spread, verdict
from .transparent import in_turns, median_ratio

ROUNDS = 10
# Enough that a round takes about 20 ms.
ROUND_NS = 20e6
FILES = 64
# For each run that is asked for.
PROCESSES = 2


def case(name, call, size, target=None, threads=1, nanoseconds=2_000):
    return {
        "name": name,
        "call": call,
        "size": size,
        "target": target,
        "threads": threads,
        "count": int(ROUND_NS / nanoseconds),
    }


CASES = [
    case("open, read, close: 4 KiB", "open", 4096, 1.25, nanoseconds=3_000),
    case("open, read, close: 4 KiB, 2 threads", "open", 4096, 1.25, threads=2, nanoseconds=3_000),
    case("open, read, close: 110 KB", "open", 110_000, 1.25, nanoseconds=15_000),
    case("pread of 4 KiB", "pread", 1 << 20, 1.05, nanoseconds=600),
    case("mmap, touch, munmap: 110 KB", "mmap", 110_000, 1.05, nanoseconds=5_000),
    case("stat", "stat", 4096, nanoseconds=1_000),
    case("fstat", "fstat", 4096, nanoseconds=400),
    case("access", "access", 4096, nanoseconds=800),
]


def calls(context):
    section = Section(
        [
            "call",
            "native",
            "`belady run`",
            "ratio",
            "CPU",
            "native again",
            "instructions, native",
            "`belady run`",
            "files elsewhere",
            "",
        ]
    )
    for size, cases in itertools.groupby(
        sorted(CASES, key=lambda case: case["size"]), lambda case: case["size"]
    ):
        measure_size(context, section, size, list(cases))
    section.note(
        f"{FILES} files in turns, all in the page cache. {PROCESSES * context.runs} processes of each kind, in turns, of "
        f"{ROUNDS} rounds whose median counts; `ratio` is that of the medians, `CPU` the same of CPU time, "
        "`native again` that of the native program beside itself: chance. Instructions a call are those of "
        "user mode, by callgrind, which sees nothing of the kernel and counts each step of a `rep` instruction (one "
        "that clears a page is 4,096). `files elsewhere`: the same calls of files "
        "outside of the dataset, under `belady run`, over the same without. stat and access of a copy are "
        "answered without the kernel; fstat asks it, and looks up the answer."
    )
    return section


def measure_size(context, section, size, cases):
    data = context.dataset(f"transparent-{size}", "--samples", FILES, "--mean", f"{size}B")
    other = context.dataset(f"transparent-other-{size}", "--samples", FILES, "--mean", f"{size}B")
    quota = 2 * FILES * size
    with context.level() as level:
        copies = context.fill(data, level, quota, FILES)
        prefix = context.command(data, level, quota, [])
        for one in cases:
            add_row(context, section, one, copies, prefix, data, other)


def add_row(context, section, one, copies, prefix, data, other):
    def loop(before, folder, count=one["count"], rounds=ROUNDS):
        return [*before, context.calls(), one["call"], count, rounds, one["threads"], folder]

    def measure(before, folder):
        return lambda: run(context.commands, loop(before, folder)).json

    found = in_turns(
        {
            "native": measure([], copies),
            "ours": measure(prefix, data),
            "again": measure([], copies),
            "other": measure([], other),
            "beside": measure(prefix, other),
        },
        PROCESSES * context.runs,
    )
    wall, cpu = medians(found, "wall_ns"), medians(found, "cpu_ns")
    ratio = median_ratio(wall["ours"], wall["native"])
    section.row(
        one["name"],
        nanoseconds(wall["native"]),
        nanoseconds(wall["ours"]),
        f"{ratio:.3f}",
        f"{median_ratio(cpu['ours'], cpu['native']):.3f}",
        f"{median_ratio(wall['again'], wall['native']):.3f}",
        instructions(context, loop, [], copies),
        instructions(context, loop, prefix, data),
        f"{median_ratio(wall['beside'], wall['other']):.3f}",
        verdict(ratio <= one["target"], f"at most {one['target']}") if one["target"] else "",
    )


def medians(found, key):
    """Of the rounds of each process, by name."""
    return {
        name: [statistics.median(result[key]) for result in results]
        for name, results in found.items()
    }


def nanoseconds(values):
    return spread(values, lambda value: f"{value:,.0f} ns")


def instructions(context, loop, before, folder):
    """Of one call: what more calls take more."""
    few, many = 500, 1_500
    counts = [context.instructions(loop([], folder, count, 1), before) for count in (few, many)]
    if None in counts:
        return ""
    # A round that is shown, and the one before it.
    return f"{(counts[1] - counts[0]) / (many - few) / 2:,.0f}"
