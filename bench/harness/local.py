"""Sections on one machine without a slow source: RAM, page cache, disk."""

import json
import statistics

from .context import SAMPLE
from .process import CommandFailed, drop_caches, run
from .table import Section, percent, rate, seconds, size as in_units, spread, verdict, whole

# A multiple of 4 KiB near 110 KB, since direct I/O reads whole blocks.
BLOCK = 28 * 4096
BLOCKS = 40_000
# Enough that the start of a process does not matter.
EPOCHS = 20


def ram(context):
    """Samples from the RAM tier to a Rust consumer, beside memcpy on memory of the same kind."""
    section = Section(
        ["samples", "how", "threads", "samples/s", "rate", "CPU-s per GB", "of memcpy", ""]
    )
    rings = []
    for size in (SAMPLE, 1_000):
        for threads in (1, 2):
            found = {"memcpy": [], "copy": [], "lend": []}
            for _ in range(context.runs):
                for mode in ("copy", "lend"):
                    found[mode].append(
                        context.example(
                            "ram_speed",
                            "--size",
                            f"{size}B",
                            "--threads",
                            threads,
                            "--mode",
                            mode,
                            "--json",
                        ).json
                    )
                copied = found["copy"][-1]
                rings.append(copied["span"])
                found["memcpy"].append(memcpy(context, size, threads, copied))
            baseline = statistics.median(map(bytes_a_second, found["memcpy"]))
            for how, runs in found.items():
                ram_row(section, size, how, threads, runs, baseline)
    section.note(
        "`copy`: each sample is copied once, from the tier into a slot of the ring. `lend`: the tier's own bytes are "
        "lent, and nothing is copied, so that there is nothing to put beside memcpy. `memcpy`: as many threads copy blocks of the same size and alignment, from "
        "memory of the tier's kind into memory of the ring's kind, of as many bytes as nine in ten of the batches "
        f"of the `copy` before it lay in: {in_units(min(rings))} to {in_units(max(rings))}."
    )
    return section


def memcpy(context, size, threads, copied):
    """A bare copy into as much memory as `copied`, a run of the engine, has used of its ring."""
    # Small blocks are slower; a second or two of either is enough.
    total = "20GB" if size == SAMPLE else "4GB"
    return context.baseline(
        "memcpy",
        "--size",
        f"{size}B",
        "--threads",
        threads,
        "--total",
        total,
        "--ring",
        f"{max(copied['span'], 2 * threads * size)}B",
        "--align",
        f"{copied['align']}B",
    ).json


def bytes_a_second(result):
    return result["bytes"] / result["seconds"]


def ram_row(section, size, how, threads, runs, baseline):
    # What is lent was not touched, so its bytes a second say nothing.
    copied = (
        ("",) * 3
        if how == "lend"
        else (
            spread(list(map(bytes_a_second, runs)), rate),
            spread(
                [run["cpu_seconds"] / run["bytes"] * 1e9 for run in runs],
                lambda value: f"{value:.3f}",
            ),
            percent(statistics.median(map(bytes_a_second, runs)) / baseline),
        )
    )
    speed = spread([run["samples"] / run["seconds"] for run in runs], whole)
    section.row(f"{size:,} B", how, threads, speed, *copied, ram_verdict(size, how, runs, baseline))


def ram_verdict(size, how, runs, baseline):
    ours = statistics.median(map(bytes_a_second, runs))
    if size == SAMPLE and how == "copy":
        return verdict(ours >= 0.6 * baseline, "at least 60 %")
    if size == 1_000 and how == "lend":
        return verdict(ours / size >= 2e6, "at least 2 million/s")
    return ""


def overall(finished):
    """Samples, bytes and seconds of all epochs: what one epoch reads ahead for the next does
    not count twice."""
    epochs = finished.json["epochs"]
    return {key: sum(epoch[key] for epoch in epochs) for key in ("samples", "bytes", "seconds")}


def warm(context):
    """Files in the page cache, beside a bare pread pool."""
    dataset = context.dataset("flat-110k", "--samples", 10_000, "--mean", f"{SAMPLE}B")
    section = Section(
        ["reader", "threads", "samples/s", "rate", "CPU-s per 1,000 samples", "of the pool", ""]
    )
    context.baseline("pread-pool", dataset, "--threads", 2)
    best = {"pread pool": 0.0, "pread pool, keeps a batch": 0.0, "belady": 0.0}
    for threads in (1, 2, 4, 8):
        # In turns, so that a busy neighbour meets both.
        pools, keeping, ours = [], [], []
        for _ in range(context.runs):
            pool = ("pread-pool", dataset, "--threads", threads, "--epochs", EPOCHS)
            pools.append(context.baseline(*pool))
            keeping.append(context.baseline(*pool, "--keep", 64))
            ours.append(
                context.read(
                    dataset, "flat", "--epochs", EPOCHS, "--threads", threads, "--staging", "64MiB"
                )
            )
        pool_rate = None
        loaders = (("pread pool", pools), ("pread pool, keeps a batch", keeping), ("belady", ours))
        for name, runs in loaders:
            done = [overall(finished) for finished in runs]
            speeds = [work["samples"] / work["seconds"] for work in done]
            speed = statistics.median(speeds)
            pool_rate = pool_rate or speed
            best[name] = max(best[name], speed)
            section.row(
                name,
                threads,
                spread(speeds, whole),
                spread(list(map(bytes_a_second, done)), rate),
                spread(
                    [1e3 * finished.cpu / done[0]["samples"] for finished in runs],
                    lambda value: f"{value:.4f}",
                ),
                percent(speed / pool_rate),
                "",
            )
    ratio = best["belady"] / best["pread pool"]
    fair = best["belady"] / best["pread pool, keeps a batch"]
    section.note(
        f"Best of each, whatever the threads: {percent(ratio)} of the pool, "
        f"{verdict(ratio >= 1, 'at least as fast')}; {percent(fair)} of a pool that keeps the last "
        f"64 samples instead of overwriting one in the processor's cache. All {EPOCHS} "
        "epochs; CPU of all threads, with listing and start."
    )
    return section


FIO_ENGINES = {
    "fio psync, 16 threads": ("--ioengine=psync", "--numjobs=16", "--thread"),
    "fio psync direct, 16 threads": ("--ioengine=psync", "--numjobs=16", "--thread", "--direct=1"),
    "fio libaio direct, depth 32": ("--ioengine=libaio", "--iodepth=32", "--direct=1"),
    "fio io_uring direct, depth 32": ("--ioengine=io_uring", "--iodepth=32", "--direct=1"),
}


def fio(context, file, options):
    """Bytes a second of random reads that touch every block once, as an epoch does."""
    jobs = 16 if "--numjobs=16" in options else 1
    # Jobs do not know of each other's reads, so each has a part of the file.
    part = BLOCKS * BLOCK // jobs
    command = [
        "fio",
        "--name=cold",
        f"--filename={file}",
        "--readonly",
        "--rw=randread",
        f"--bs={BLOCK}",
        "--group_reporting",
        "--output-format=json",
        "--randrepeat=0",
        f"--size={part}",
        f"--offset_increment={part}",
        *options,
    ]
    text = run(context.commands, command).output
    # fio may print notes before its JSON.
    job = json.loads(text[text.index("{") :])["jobs"][0]
    if job["error"]:
        raise CommandFailed(f"fio ended with error {job['error']}")
    return job["read"]["bw_bytes"]


def cold(context):
    """Records on the local disk that nothing has cached, beside fio."""
    dataset = context.dataset(
        "records-cold", "--samples", BLOCKS, "--mean", f"{BLOCK}B", "--layout", "records:1"
    )
    if not drop_caches():
        raise CommandFailed("the page cache can only be emptied by root (/proc/sys/vm/drop_caches)")
    section = Section(["reader", "rate", "of fio's best", ""])
    rates = {name: [] for name in (*FIO_ENGINES, "belady")}
    processes = []
    for _ in range(context.runs):
        for name, options in FIO_ENGINES.items():
            drop_caches()
            rates[name].append(fio(context, dataset / "00000.rec", options))
        drop_caches()
        ours = context.read(
            dataset,
            f"records:{BLOCK}",
            "--epochs",
            1,
            "--threads",
            32,
            "--staging",
            "256MiB",
            "--direct",
        )
        rates["belady"].append(bytes_a_second(overall(ours)))
        processes.append(ours)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    disk = max(medians[name] for name in FIO_ENGINES)
    for name, values in rates.items():
        judged = verdict(medians[name] >= 0.9 * disk, "within 10 %") if name == "belady" else ""
        section.row(name, spread(values, rate), percent(medians[name] / disk), judged)
    section.note(
        f"Random reads of {BLOCK:,} B in one file of {BLOCKS * BLOCK / 1e9:.2f} GB, caches of this machine dropped "
        f"before each. belady's process: {spread([ours.wall for ours in processes], seconds)}, "
        f"{spread([ours.cpu for ours in processes], seconds)} of CPU. A virtual disk may be cached by its host: do not "
        "take these rates for those of a drive."
    )
    return section
