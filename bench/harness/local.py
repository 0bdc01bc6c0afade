"""Sections on one machine without a slow source: RAM, page cache, disk."""

import json

from .context import SAMPLE
from .process import CommandFailed, drop_caches, run
from .table import Section, percent, rate, verdict

# A multiple of 4 KiB near 110 KB, since direct I/O reads whole blocks.
BLOCK = 28 * 4096
BLOCKS = 40_000
# Enough that the start of a process does not matter.
EPOCHS = 20


def ram(context):
    """Samples from the RAM tier to a Rust consumer, beside memcpy."""
    section = Section(["samples", "how", "threads", "samples/s", "rate", "CPU-s per GB", "of memcpy", ""])
    for size in (SAMPLE, 1_000):
        for threads in (1, 2):
            # Small blocks are slower; a second or two of either is enough.
            total = "20GB" if size == SAMPLE else "4GB"
            copied = [
                context.peer("memcpy", "--size", f"{size}B", "--threads", threads, "--total", total).json
                for _ in range(context.runs)
            ]
            peer = min(copied, key=lambda result: result["seconds"])
            peer_rate = peer["bytes"] / peer["seconds"]
            ram_row(section, size, "memcpy", threads, peer, peer_rate, "")
            for mode in ("copy", "lend"):
                results = [
                    context.example(
                        "ram_speed", "--size", f"{size}B", "--threads", threads, "--mode", mode,
                        "--json",
                    ).json
                    for _ in range(context.runs)
                ]
                ours = min(results, key=lambda result: result["seconds"])
                ram_row(section, size, mode, threads, ours, peer_rate, ram_verdict(size, mode, ours, peer_rate))
    section.note(
        "Best of the runs. `copy`: each sample is copied once, from the tier into a slot of the "
        "ring. `lend`: the tier's own bytes are lent, and nothing is copied."
    )
    return section


def ram_row(section, size, how, threads, result, peer_rate, judged):
    speed = result["bytes"] / result["seconds"]
    section.row(
        f"{size:,} B", how, threads, f"{result['samples'] / result['seconds']:,.0f}", rate(speed),
        f"{result['cpu_seconds'] / result['bytes'] * 1e9:.3f}", percent(speed / peer_rate), judged,
    )


def ram_verdict(size, mode, ours, peer_rate):
    if size == SAMPLE and mode == "copy":
        return verdict(ours["bytes"] / ours["seconds"] >= 0.6 * peer_rate, "at least 60 %")
    if size == 1_000 and mode == "lend":
        return verdict(ours["samples"] / ours["seconds"] >= 2e6, "at least 2 million/s")
    return ""


def overall(finished):
    """Samples, bytes and seconds of all epochs: what one epoch reads ahead for the next does
    not count twice."""
    epochs = finished.json["epochs"]
    return {key: sum(epoch[key] for epoch in epochs) for key in ("samples", "bytes", "seconds")}


def warm(context):
    """Files in the page cache, beside a bare pread pool."""
    dataset = context.dataset("flat-110k", "--samples", 10_000, "--mean", f"{SAMPLE}B")
    section = Section(["reader", "threads", "samples/s", "rate", "CPU-s per 1,000 samples", "of the pool", ""])
    context.peer("pread-pool", dataset, "--threads", 2)
    best = {"pread pool": 0.0, "pread pool, keeps a batch": 0.0, "belady": 0.0}
    for threads in (1, 2, 4, 8):
        # In turns, so that a busy neighbour meets both.
        pools, keeping, ours = [], [], []
        for _ in range(context.runs):
            pool = ("pread-pool", dataset, "--threads", threads, "--epochs", EPOCHS)
            pools.append(context.peer(*pool))
            keeping.append(context.peer(*pool, "--keep", 64))
            ours.append(
                context.read(dataset, "flat", "--epochs", EPOCHS, "--threads", threads, "--staging", "64MiB")
            )
        pool_rate = None
        loaders = (("pread pool", pools), ("pread pool, keeps a batch", keeping), ("belady", ours))
        for name, runs in loaders:
            done = min(map(overall, runs), key=lambda work: work["seconds"])
            speed = done["samples"] / done["seconds"]
            pool_rate = pool_rate or speed
            best[name] = max(best[name], speed)
            section.row(
                name, threads, f"{speed:,.0f}", rate(done["bytes"] / done["seconds"]),
                f"{1e3 * min(finished.cpu for finished in runs) / done['samples']:.4f}",
                percent(speed / pool_rate), "",
            )
    ratio = best["belady"] / best["pread pool"]
    fair = best["belady"] / best["pread pool, keeps a batch"]
    section.note(
        f"Best of each, whatever the threads: {percent(ratio)} of the pool, "
        f"{verdict(ratio >= 1, 'at least as fast')}; {percent(fair)} of a pool that keeps the last "
        f"64 samples instead of overwriting one in the processor's cache. Best run, all {EPOCHS} "
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
        "fio", "--name=cold", f"--filename={file}", "--readonly", "--rw=randread",
        f"--bs={BLOCK}", "--group_reporting", "--output-format=json", "--randrepeat=0",
        f"--size={part}", f"--offset_increment={part}", *options,
    ]
    text = run(context.commands, command).output
    # fio may print notes before its JSON.
    job = json.loads(text[text.index("{"):])["jobs"][0]
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
    best = ""
    for _ in range(context.runs):
        for name, options in FIO_ENGINES.items():
            drop_caches()
            rates[name].append(fio(context, dataset / "00000.rec", options))
        drop_caches()
        ours = context.read(
            dataset, f"records:{BLOCK}", "--epochs", 1, "--threads", 32, "--staging", "256MiB", "--direct"
        )
        done = overall(ours)
        rates["belady"].append(done["bytes"] / done["seconds"])
        if rates["belady"][-1] == max(rates["belady"]):
            best = f"{done['seconds']:.2f} s for the epoch, {ours.wall:.2f} s for the process, {ours.cpu:.2f} CPU-s"
    disk = max(max(values) for name, values in rates.items() if name != "belady")
    for name, values in rates.items():
        judged = verdict(max(values) >= 0.9 * disk, "within 10 %") if name == "belady" else ""
        section.row(name, rate(max(values)), percent(max(values) / disk), judged)
    section.note(
        f"Best of the runs; random reads of {BLOCK:,} B in one file of {BLOCKS * BLOCK / 1e9:.2f} GB, "
        f"caches of this machine dropped before each. belady's best run: {best}. A virtual "
        "disk may be cached by its host: do not take these rates for those of a drive."
    )
    return section
