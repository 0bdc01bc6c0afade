"""Samples from a peer's RAM tier over one loopback connection, beside iperf3.

iperf3 sends one buffer again and again and receives into one, so its bytes stay in the processor's
cache. We measure the same (`one sample`), and what a loader does: a dataset larger than the cache, into
slots of a batch (`256 MiB`). Targets are for both.
"""

import json
import statistics
import subprocess
import time

from .process import CommandFailed, run
from .table import Section, percent, rate, spread, verdict, whole

SECONDS = 3
PORT = 5329
# iperf3 takes no larger blocks, so our 4 MiB are held against its largest.
KINDS = [(128 << 10, "128K", 0.8), (4 << 20, "1M", 0.9)]
ONE = ("--samples", 1, "--slots", 1)


def network(context):
    """Ours and iperf3 in turns."""
    section = Section(
        [
            "samples",
            "of",
            "by",
            "rate",
            "samples/s",
            "of iperf3",
            "CPU-s per GB",
            "CPU of iperf3",
            "",
        ]
    )
    for size, block, share in KINDS:
        compare(context, section, size, block, share)
    small(context, section)
    section.note(
        "Runs alternate; ratios are those of medians. CPU-seconds are those of both ends together. iperf3 sends "
        "and receives in one buffer, which stays in the processor's cache; `one sample` does the same. "
        "`256 MiB` is a dataset in a RAM tier, of which batches of 32 MiB are asked for. iperf3 writes at "
        "most 1 MiB at once, so 4 MiB are held against that."
    )
    return section


def compare(context, section, size, block, share):
    variants = {
        ("one sample", "tcp"): ("--size", size, *ONE),
        ("256 MiB", "tcp"): ("--size", size),
        ("256 MiB", "unix"): ("--size", size, "--transport", "unix"),
    }
    plain, ours = [], {name: [] for name in variants}
    for _ in range(context.runs):
        plain.append(iperf3(context, block))
        for name, options in variants.items():
            ours[name].append(measure(context, *options))
    row(section, f"{size >> 10} KiB", f"writes of {block}", "iperf3", plain, plain)
    for (name, transport), runs in ours.items():
        row(
            section,
            f"{size >> 10} KiB",
            name,
            f"ours, {transport}",
            runs,
            plain,
            size,
            share if transport == "tcp" else None,
        )


def small(context, section):
    runs = [measure(context, "--size", 1024) for _ in range(context.runs)]
    counts = [run["rate"] / 1024 for run in runs]
    judged = verdict(statistics.median(counts) > 100_000, "more than 100,000/s")
    section.row(
        "1 KiB",
        "256 MiB",
        "ours, tcp",
        all_of(runs, "rate", rate),
        spread(counts, whole),
        "",
        all_of(runs, "cpu", thousandths),
        "",
        judged,
    )


def row(section, samples, of, by, runs, baseline, size=0, share=None):
    faster, dearer = (middle(runs, key) / middle(baseline, key) for key in ("rate", "cpu"))
    judged = (
        ""
        if share is None
        else verdict(faster >= share and dearer <= 1.5, f"at least {share:.0%}, CPU at most 1.5")
    )
    section.row(
        samples,
        of,
        by,
        all_of(runs, "rate", rate),
        spread([run["rate"] / size for run in runs], whole) if size else "",
        percent(faster),
        all_of(runs, "cpu", thousandths),
        f"{dearer:.2f}",
        judged,
    )


def all_of(runs, key, text):
    return spread([run[key] for run in runs], text)


def middle(runs, key):
    return statistics.median(run[key] for run in runs)


def thousandths(value):
    return f"{value:.3f}"


def measure(context, *options):
    result = context.example("network_speed", "--seconds", SECONDS, *options).json
    return {
        "rate": result["bytes"] / result["seconds"],
        "cpu": result["cpu_seconds"] / result["bytes"] * 1e9,
    }


def iperf3(context, block):
    """One run; the server serves once and ends."""
    server = ["iperf3", "--server", "--one-off", "--bind", "127.0.0.1", "--port", str(PORT)]
    context.commands.add(server)
    try:
        process = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise CommandFailed("iperf3 is not installed: apt-get install iperf3") from error
    try:
        client = [
            "iperf3",
            "--client",
            "127.0.0.1",
            "--port",
            PORT,
            "--time",
            SECONDS,
            "--length",
            block,
            "--json",
        ]
        end = ask(context, client)["end"]
    finally:
        process.terminate()
        process.wait()
    received, cpu = end["sum_received"], end["cpu_utilization_percent"]
    busy = (cpu["host_total"] + cpu["remote_total"]) / 100 * received["seconds"]
    return {"rate": received["bytes"] / received["seconds"], "cpu": busy / received["bytes"] * 1e9}


def ask(context, client):
    """The server needs a moment to listen."""
    for _ in range(50):
        time.sleep(0.1)
        try:
            return json.loads(run(context.commands, client).output)
        except CommandFailed as error:
            last = error
    raise last
