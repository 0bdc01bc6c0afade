"""Programs that touch no file of the dataset, and what a start takes."""

import contextlib
import statistics

from .process import ROOT
from .table import Section, seconds, spread, verdict
from .transparent import Launcher, in_turns, median_ratio, timed

CACHED = 1_000
SIZE = 4096
MODULES = "argparse, asyncio, ctypes, decimal, email, http.client, json, logging, sqlite3, unittest, xml.dom"
START_LIMIT = 3e-3
# For each run that is asked for.
PROCESSES, STARTS = 2, 20


def programs(context):
    section = Section(
        [
            "program",
            "native",
            "`belady run`",
            "ratio",
            "CPU",
            "the library alone",
            "CPU",
            "native again",
            "CPU",
            "instructions",
            "",
        ]
    )
    with small_cache(context) as (data, level, quota):
        other = context.dataset(
            "transparent-tree", "--samples", 20_000, "--mean", "2KB", "--layout", "folder:200"
        )
        for name, (timed_part, counted_part) in commands(other).items():
            add_program(context, section, name, timed_part, counted_part, data, level, quota)
    section.note(
        f"{PROCESSES * context.runs} processes of each kind, in turns. `belady run`: all of it, the start of the launcher "
        f"too, with {CACHED:,} copies in the cache. `the library alone`: in a process of a launcher that is "
        "already there. `native again` is the native program beside itself: chance. Instructions: those of user "
        "mode, by callgrind, with the library over those without, of one python3, cc or tar; the launcher's are not "
        "counted."
    )
    return section


def commands(other):
    """What is timed, about a second each, and the part of it in which instructions are counted."""
    python, compiler = (
        f"python3 -c 'import {MODULES}'",
        f"cc -O2 -c -o /dev/null {ROOT}/bench/calls.c",
    )
    tar = f"tar --create --file - --directory {other} . | cat > /dev/null"
    return {
        "10 × python3, which imports much": (ten(python), python),
        "10 × cc": (ten(compiler), compiler),
        "tar of 20,000 files": (tar, tar),
    }


def ten(command):
    return f"for i in 1 2 3 4 5 6 7 8 9 10; do {command}; done"


def add_program(context, section, name, timed_part, counted_part, data, level, quota):
    command = ["sh", "-c", timed_part]
    whole = context.command(data, level, quota, command)
    for shown in (command, whole):
        context.commands.add(shown)
    with Launcher(context, data, level, quota) as environment:
        found = in_turns(
            {
                "native": lambda: timed(command),
                "ours": lambda: timed(whole),
                "library": lambda: timed(command, environment),
                "again": lambda: timed(command),
            },
            PROCESSES * context.runs,
        )
    wall, cpu = split(found)
    ratio = median_ratio(wall["ours"], wall["native"])
    counted = ["sh", "-c", counted_part]
    one_way = context.instructions(counted)
    other_way = context.instructions(counted, context.command(data, level, quota, []))
    section.row(
        name,
        spread(wall["native"], seconds),
        spread(wall["ours"], seconds),
        f"{ratio:.3f}",
        f"{median_ratio(cpu['ours'], cpu['native']):.3f}",
        f"{median_ratio(wall['library'], wall['native']):.3f}",
        f"{median_ratio(cpu['library'], cpu['native']):.3f}",
        f"{median_ratio(wall['again'], wall['native']):.3f}",
        f"{median_ratio(cpu['again'], cpu['native']):.3f}",
        f"{other_way / one_way:.4f}" if one_way else "",
        verdict(ratio <= 1.02, "at most 1.02"),
    )


def start(context):
    """`true`, which does nothing, with and without."""
    section = Section(["`true`", "median", "more than native", "CPU", "more than native", ""])
    plain = ["true"]
    with small_cache(context) as (data, level, quota), context.level("transparent-empty") as empty:
        # On an empty cache nothing is placed, so it stays empty.
        variants = {
            "native": (plain, None),
            "native again": (plain, None),
            "`belady run`, empty cache": (context.command(data, empty, quota, plain), None),
            f"`belady run`, {CACHED:,} copies": (context.command(data, level, quota, plain), None),
        }
        for command, _ in variants.values():
            context.commands.add(command)
        with Launcher(context, data, level, quota) as environment:
            variants["the library alone"] = (plain, environment)
            found = in_turns(
                {name: lambda run=run: timed(*run) for name, run in variants.items()},
                STARTS * context.runs,
            )
    wall, cpu = split(found)
    for name in variants:
        more, more_cpu = (
            statistics.median(of[name]) - statistics.median(of["native"]) for of in (wall, cpu)
        )
        judged = (
            "" if name.startswith("native") else verdict(more <= START_LIMIT, "at most 3 ms more")
        )
        section.row(
            name,
            spread(wall[name], milliseconds),
            milliseconds(more),
            spread(cpu[name], milliseconds),
            milliseconds(more_cpu),
            judged,
        )
    section.note(
        f"{STARTS * context.runs} starts of each kind, in turns; CPU is that of the launcher and the program."
    )
    return section


def milliseconds(value):
    return f"{value * 1e3:.2f} ms"


@contextlib.contextmanager
def small_cache(context):
    """A dataset of small files, and a level with copies of all."""
    data = context.dataset("transparent-small", "--samples", CACHED, "--mean", f"{SIZE}B")
    quota = 2 * CACHED * SIZE
    with context.level() as level:
        context.fill(data, level, quota, CACHED)
        yield data, level, quota


def split(found):
    return [{name: [pair[at] for pair in pairs] for name, pairs in found.items()} for at in (0, 1)]
