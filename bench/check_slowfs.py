#!/usr/bin/env python3
"""Does slowfs follow its table, and how fast is it without one?

    cargo build --release -p slowfs -p peers
    python3 bench/check_slowfs.py

Readers in a closed loop (each opens, reads and closes a file, then the next one) are γ reads
in flight; what they get together is put beside t(γ). Files of 110 KB are one request of the
kernel each, files of 1 MB too. The ceiling is measured with a table that never binds.
"""

import argparse
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import process, table  # noqa: E402
from harness.mount import HDMLP_4, Mount  # noqa: E402

UNBOUND = {1: 1_000_000}


def dataset(commands, peers, folder, samples, size):
    made = folder / f"flat-{samples}x{size}"
    command = [peers, "dataset", made, "--samples", samples, "--mean", f"{size}B"]
    process.run(commands, command)
    return made


def read(commands, peers, at, threads):
    command = [peers, "pread-pool", at.path, "--threads", threads]
    return process.run(commands, command).json


def check(args, commands, binaries, folder):
    section = table.Section(["file", "latency", "readers", "table", "measured", "off"])
    curve = {readers: rate * args.factor for readers, rate in HDMLP_4.items()}
    worst = 0.0
    for samples, size, latency in ((1500, 110_000, 0.0), (200, 1_000_000, 0.0), (600, 110_000, 0.001)):
        source = dataset(commands, binaries["peers"], folder, samples, size)
        options = ("--latency", f"{latency * 1e3:g}ms")
        with Mount(commands, binaries["slowfs"], source, curve, *options) as at:
            read(commands, binaries["peers"], at, 4)
            for readers in (1, 2, 3, 4, 8, 16):
                # With latency reads are not in service all the time: only one reader has
                # a rate that follows from the table without a model.
                if latency and readers > 1:
                    continue
                in_service = 1e6 * curve[min(readers, 4)]
                expected = size / (latency + size / in_service) if latency else in_service
                results = [read(commands, binaries["peers"], at, readers) for _ in range(args.runs)]
                rates = [result["bytes"] / result["seconds"] for result in results]
                measured = statistics.median(rates)
                off = measured / expected - 1
                worst = max(worst, abs(off))
                section.row(
                    table.size(size), table.seconds(latency) if latency else "none", readers,
                    table.rate(expected), table.rate(measured), f"{100 * off:+.1f} %",
                )
    section.note(f"Largest deviation: {table.percent(worst)}, {table.verdict(worst <= 0.02, '2 %')}.")
    return section


def ceiling(args, commands, binaries, folder):
    section = table.Section(["file", "readers", "rate", "reads/s"])
    for samples, size in ((1500, 110_000), (200, 1_000_000)):
        source = dataset(commands, binaries["peers"], folder, samples, size)
        with Mount(commands, binaries["slowfs"], source, UNBOUND) as at:
            read(commands, binaries["peers"], at, 4)
            for readers in (1, 4, 16):
                results = [read(commands, binaries["peers"], at, readers) for _ in range(args.runs)]
                fastest = min(results, key=lambda result: result["seconds"])
                section.row(
                    table.size(size), readers,
                    table.rate(fastest["bytes"] / fastest["seconds"]),
                    f"{fastest['samples'] / fastest['seconds']:,.0f}",
                )
    return section


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--factor", type=float, default=2, help="scales the table of hdmlp-4")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    target = process.target_directory()
    binaries = {name: target / "release" / name for name in ("slowfs", "peers")}
    folder = target / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    commands = process.Commands()
    print(process.machine())
    try:
        for title, part in (("The table", check), ("The ceiling", ceiling)):
            print(f"\n{title}\n\n{part(args, commands, binaries, folder).markdown()}", flush=True)
    except process.CommandFailed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
