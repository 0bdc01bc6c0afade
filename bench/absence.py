#!/usr/bin/env python3
"""What a rank that is away for a while costs the ranks that are not: the time of each of their epochs
beside the same epoch of a run without a fault, retries, and samples read from the source.

    cargo build --release -p belady
    python3 bench/absence.py                          # every fault once
    python3 bench/absence.py --fault stop --runs 20   # one of them, often
    python3 bench/absence.py --fault link             # needs root: network namespaces

Four `belady read` processes meet in a directory and read 128 MB in files of 32 KiB, each at 10 MB/s and
at its own speed. Rank 2 is stopped (SIGSTOP), killed and started again, or loses its link, once or again
and again. Before that they run once without a fault, over links of the same kind. The exit status is 1 if
a rank fails, if it has not ended in time and so hangs, or if all have ended before the fault.
"""

import argparse
import dataclasses
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

from harness import netns

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = 4
VICTIM = 2
FILES, SIZE = 3906, 32 << 10
# An epoch takes 3.2 s.
RATE = "10MB/s"
# Bytes a second of a link, where ranks have links.
LINK = 200e6
# `none` is a second run without a fault beside the first: what two of them differ by.
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
            *command,
            self.arguments.belady,
            "read",
            self.data,
            "--no-snapshot",
            "--json",
            "--cache",
            "ram:36MiB",
            "--staging",
            "16MiB",
            "--batch",
            "16",
            "--epochs",
            self.arguments.epochs,
            "--consume",
            RATE,
            "--rank",
            rank,
            "--ranks",
            RANKS,
            "--meet",
            self.folder / "meet",
        ]
        if self.network:
            command += ["--bind", self.network.address(rank)]
        if self.arguments.barrier:
            command += ["--barrier"]
        out = (self.folder / f"{rank}.{life}.json").open("wb")
        err = (self.folder / f"{rank}.{life}.err").open("wb")
        return subprocess.Popen([str(part) for part in command], stdout=out, stderr=err)

    def break_something(self, fault):
        """Blocks until it is whole again; whether ranks were still running when it broke first."""
        times = 4 if fault in ("stops", "links") else 1
        for time_of_it in range(times):
            if any(rank.poll() is not None for rank in self.ranks):
                return time_of_it > 0
            if time_of_it:
                time.sleep(self.arguments.between)
            self.break_once(fault)
        return True

    def break_once(self, fault):
        victim = self.ranks[VICTIM]
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

    def wait(self, limit):
        """What is wrong with the ranks, one sentence each: those that have failed, and those that hang."""
        until = time.monotonic() + limit
        wrong = []
        for number, rank in enumerate(self.ranks):
            try:
                if rank.wait(max(0.1, until - time.monotonic())) != 0:
                    wrong.append(
                        f"rank {number} failed with status {rank.returncode}: {self.last_words(number)}"
                    )
            except subprocess.TimeoutExpired:
                wrong.append(f"rank {number} hangs")
        return wrong

    def last_words(self, rank):
        said = (
            max(self.folder.glob(f"{rank}.*.err")).read_text(errors="replace").strip().splitlines()
        )
        return said[-1] if said else "it said nothing"

    def end(self):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()

    def reports(self):
        healthy = [rank for rank in range(RANKS) if rank != VICTIM]
        return [json.loads((self.folder / f"{rank}.0.json").read_text()) for rank in healthy]


@dataclasses.dataclass
class Outcome:
    """What the healthy ranks report, or what is wrong."""

    reports: list
    wrong: list

    def seconds(self):
        """The seconds of every epoch, one number a rank."""
        return list(
            zip(
                *[[epoch["seconds"] for epoch in report["epochs"]] for report in self.reports],
                strict=True,
            )
        )


def one(arguments, data, fault, links):
    with tempfile.TemporaryDirectory() as folder:
        if links:
            with netns.Network(Names(), RANKS, LINK) as network:
                return run(arguments, data, pathlib.Path(folder), fault, network)
        return run(arguments, data, pathlib.Path(folder), fault, None)


def run(arguments, data, folder, fault, network):
    job = Job(arguments, data, folder, network)
    try:
        time.sleep(arguments.after)
        in_time = fault == "none" or job.break_something(fault)
        # The one that was started anew has all of its epochs before it.
        wrong = job.wait(arguments.limit)
        if not in_time and not wrong:
            wrong = ["the ranks ended before the fault: give more --epochs, or less --after"]
        return Outcome([] if wrong else job.reports(), wrong)
    finally:
        job.end()


def tell(fault, outcome, plain):
    if outcome.wrong:
        print(f"{fault:8} {'; '.join(outcome.wrong)}", flush=True)
        return
    usual = [statistics.median(epoch) for epoch in plain.seconds()]
    slowest = [
        max(epoch) / without for epoch, without in zip(outcome.seconds(), usual, strict=True)
    ]
    reads = sum(
        epoch["source_reads"] for report in outcome.reports for epoch in report["epochs"][1:]
    )
    retries = sum(report["peers"]["retries"] for report in outcome.reports)
    ratios = " ".join(f"{ratio:.1f}" for ratio in slowest)
    print(
        f"{fault:8} epochs {ratios} times those without a fault ({statistics.median(usual):.2f} s); "
        f"retries {retries}, source reads after the first epoch {reads}",
        flush=True,
    )


def measure(arguments, data):
    """How many runs went wrong. Without a run without a fault there is nothing to compare with."""
    wrong, plain = 0, {}
    for fault in arguments.fault or [fault for fault in FAULTS if not fault.startswith("link")]:
        links = fault.startswith("link")
        if links not in plain:
            plain[links] = one(arguments, data, "none", links)
            tell("none", plain[links], plain[links])
        if plain[links].wrong:
            return wrong + 1
        for _ in range(arguments.runs):
            outcome = one(arguments, data, fault, links)
            tell(fault, outcome, plain[links])
            wrong += bool(outcome.wrong)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--belady", default=ROOT / "target/release/belady", type=pathlib.Path)
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--after", type=float, default=6, help="seconds until the fault")
    parser.add_argument("--away", type=float, default=10, help="seconds that rank 2 is away")
    parser.add_argument(
        "--between", type=float, default=2, help="seconds until the next fault, of several"
    )
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a rank hangs")
    parser.add_argument(
        "--barrier", action="store_true", help="end every step together, as training"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = measure(arguments, dataset(pathlib.Path(folder) / "data"))
    print(f"{wrong} runs went wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
