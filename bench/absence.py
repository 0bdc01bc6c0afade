#!/usr/bin/env python3
"""What a rank that is away for a while costs the ranks that are not: the time of each of their epochs
beside an epoch without faults, retries, and samples read from the source.

    cargo build --release -p belady
    python3 bench/absence.py                          # every fault once
    python3 bench/absence.py --fault stop --runs 20   # one of them, often
    python3 bench/absence.py --fault link             # needs root: network namespaces

Four `belady read` processes meet in a directory and read 128 MB in files of 32 KiB, each at 10 MB/s and
at its own speed. Rank 2 is stopped (SIGSTOP), killed and started again, or loses its link, once or again
and again. A rank that has not ended in time hangs: then the exit status is 1.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import netns  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = 4
VICTIM = 2
FILES, SIZE = 3906, 32 << 10
# An epoch takes 3.2 s.
RATE = "10MB/s"
# Bytes a second of a link, where ranks have links.
LINK = 200e6
FAULTS = ("none", "stop", "stops", "restart", "link", "links")


class Names:
    """Stands where the harness wants to know what paths are called in the commands that it prints."""

    def name(self, *_):
        pass


def dataset(folder):
    folder.mkdir()
    block = os.urandom(SIZE)
    for at in range(FILES):
        (folder / f"{at:05}.bin").write_bytes(at.to_bytes(4, "little") + block[4:])
    return folder


class Job:
    """Four ranks."""

    def __init__(self, arguments, data, folder, network):
        self.arguments, self.data, self.folder, self.network = arguments, data, folder, network
        (folder / "meet").mkdir(mode=0o700)
        self.ranks = [self.start(rank) for rank in range(RANKS)]

    def start(self, rank, life=0):
        command = self.network.on(rank) if self.network else []
        command = [
            *command, self.arguments.belady, "read", self.data, "--no-snapshot", "--json",
            "--cache", "ram:36MiB", "--staging", "16MiB", "--batch", "16",
            "--epochs", self.arguments.epochs, "--consume", RATE,
            "--rank", rank, "--ranks", RANKS, "--meet", self.folder / "meet",
        ]
        if self.network:
            command += ["--bind", self.network.address(rank)]
        if self.arguments.barrier:
            command += ["--barrier"]
        out = (self.folder / f"{rank}.{life}.json").open("wb")
        err = (self.folder / f"{rank}.{life}.err").open("wb")
        return subprocess.Popen([str(part) for part in command], stdout=out, stderr=err)

    def break_something(self, fault):
        """Blocks until it is whole again."""
        victim = self.ranks[VICTIM]
        times = 4 if fault in ("stops", "links") else 1
        for _ in range(times):
            if any(rank.poll() is not None for rank in self.ranks):
                return
            if fault in ("stop", "stops"):
                victim.send_signal(signal.SIGSTOP)
                time.sleep(self.arguments.away)
                victim.send_signal(signal.SIGCONT)
            elif fault == "restart":
                victim.kill()
                victim.wait()
                self.ranks[VICTIM] = self.start(VICTIM, 1)
            elif fault in ("link", "links"):
                self.network.set_link(VICTIM, "down")
                time.sleep(self.arguments.away)
                self.network.set_link(VICTIM, "up")
            time.sleep(2)

    def wait(self, limit):
        """The ranks that have not ended by then."""
        until = time.monotonic() + limit
        hang = []
        for number, rank in enumerate(self.ranks):
            try:
                rank.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                hang.append(number)
        return hang

    def end(self):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()

    def reports(self):
        healthy = [rank for rank in range(RANKS) if rank != VICTIM]
        return [json.loads((self.folder / f"{rank}.0.json").read_text()) for rank in healthy]


def one(arguments, data, fault):
    """What the healthy ranks report, or the ranks that hang."""
    with tempfile.TemporaryDirectory() as folder:
        if fault.startswith("link"):
            with netns.Network(Names(), RANKS, LINK) as network:
                return run(arguments, data, pathlib.Path(folder), fault, network)
        return run(arguments, data, pathlib.Path(folder), fault, None)


def run(arguments, data, folder, fault, network):
    job = Job(arguments, data, folder, network)
    try:
        time.sleep(arguments.after)
        if fault != "none":
            job.break_something(fault)
        # The one that was started anew has all of its epochs before it.
        hang = job.wait(arguments.limit)
        return job.reports() if not hang else hang
    finally:
        job.end()


def tell(fault, reports):
    plain = statistics.median(epoch["seconds"] for report in reports for epoch in report["epochs"])
    each = zip(*[[epoch["seconds"] for epoch in report["epochs"]] for report in reports], strict=True)
    slowest = [max(epoch) / plain for epoch in each]
    reads = sum(epoch["source_reads"] for report in reports for epoch in report["epochs"][1:])
    retries = sum(report["peers"]["retries"] for report in reports)
    ratios = " ".join(f"{ratio:.1f}" for ratio in slowest)
    print(f"{fault:8} epochs {ratios} of {plain:.2f} s; "
          f"retries {retries}, source reads after the first epoch {reads}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--belady", default=ROOT / "target/release/belady", type=pathlib.Path)
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--after", type=float, default=6, help="seconds until the fault")
    parser.add_argument("--away", type=float, default=10, help="seconds that rank 2 is away")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a rank hangs")
    parser.add_argument("--barrier", action="store_true", help="end every step together, as training")
    arguments = parser.parse_args()
    hung = 0
    with tempfile.TemporaryDirectory() as folder:
        data = dataset(pathlib.Path(folder) / "data")
        for fault in arguments.fault or [fault for fault in FAULTS if not fault.startswith("link")]:
            for _ in range(arguments.runs):
                ended = one(arguments, data, fault)
                if isinstance(ended[0], int):
                    hung += 1
                    print(f"{fault:8} ranks {ended} hang", flush=True)
                else:
                    tell(fault, ended)
    print(f"{hung} runs hang")
    sys.exit(1 if hung else 0)


if __name__ == "__main__":
    main()
