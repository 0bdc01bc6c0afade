"""Kills ranks and engines of a node at random, and checks what the survivors got and what is left.

    python python/tests/node_kills.py --kills 200 --seed 0

Each job has four ranks that share one engine, a RAM cache and a disk cache, which the jobs use one after
the other. At a random moment a rank, the engine, or both are killed with SIGKILL. Every rank that lives
has to deliver exactly its epochs; a killed one, the beginning of them. Afterwards no process, socket,
shared memory or lock may be left, and the next job has to find the disk cache usable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from starting import LIMIT, PROLOGUE, started

RANKS = 4
EPOCHS = 3
BATCH = 3
SAMPLES = 60
#: After which a read without an answer counts as failed: no rank waits longer for a batch.
READ_TIMEOUT = 10.0
#: What the survivors say when they use the disk cache of a process that is still there.
LOCKED = "another job or process writes"

RANK = """
import hashlib, time
import belady
rank = int(os.environ["BELADY_RANK"])
data = belady.open(os.environ["DATA"])
loader = belady.DataLoader(
    data, batch_size=int(os.environ["BATCH"]), shuffle=True, seed=5, epochs=int(os.environ["EPOCHS"]),
    cache=["ram:40KB", os.environ["CACHE"] + ":60KB"],
    read_timeout=float(os.environ["READ_TIMEOUT"]),
)
log = os.open(os.environ["LOG"] + str(rank), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
want = [hashlib.sha1(open(data.native.sample_path(id), "rb").read()).digest() for id in range(len(data))]
pause = float(os.environ["PAUSE"])
longest = 0.0
for epoch in range(int(os.environ["EPOCHS"])):
    batches = iter(loader)
    while True:
        asked = time.monotonic()
        batch = next(batches, None)
        longest = max(longest, time.monotonic() - asked)
        if batch is None:
            break
        for id, sample in zip(batch.ids, batch[0]):
            assert hashlib.sha1(bytes(sample)).digest() == want[id], f"sample {id} is wrong"
        # A whole line, also if the next instruction never runs.
        os.write(log, (" ".join(map(str, batch.ids)) + "\\n").encode())
        time.sleep(pause)
print("longest", longest)
"""


@dataclass
class Outcome:
    """What the kills of a run have done."""

    #: Killed processes, by what they were.
    ranks: int = 0
    engines: int = 0
    jobs: int = 0
    #: Jobs of which a rank had got a batch, and no rank all, when the first process was killed.
    in_mid_run: int = 0
    #: The longest wait of a rank for a batch, in seconds.
    longest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.ranks + self.engines


class KilledJob:
    """One job, from its start to the check of what it leaves."""

    def __init__(self, folder: Path, data: Path, cache: Path, draw: random.Random) -> None:
        self.folder = folder
        self.draw = draw
        self.sockets = folder / "sockets"
        script = folder / "rank.py"
        script.write_text(PROLOGUE + RANK)
        self.ranks = [
            started(
                [sys.executable, script],
                BELADY_MEET=str(folder / "meeting"),
                BELADY_RANKS=str(RANKS),
                BELADY_RANK=str(rank),
                BELADY_NODE_DIR=str(self.sockets),
                BATCH=str(BATCH),
                EPOCHS=str(EPOCHS),
                READ_TIMEOUT=str(READ_TIMEOUT),
                DATA=str(data),
                CACHE=str(cache),
                LOG=str(folder / "log"),
                PAUSE=str(draw.choice([0, 0.002, 0.01])),
            )
            for rank in range(RANKS)
        ]
        self.killed: set[int] = set()

    def processes(self) -> list[int]:
        """The engines, and ranks, of this job that run."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and str(self.folder) in (
                    (entry / "cmdline").read_bytes().decode(errors="replace")
                ):
                    found.append(int(entry.name))
        return found

    def engines(self) -> list[int]:
        ranks = {rank.pid for rank in self.ranks}
        return [process for process in self.processes() if process not in ranks]

    def delivered(self) -> int:
        """The batches that the ranks have got so far."""
        logs = (self.folder / f"log{rank}" for rank in range(RANKS))
        return sum(log.read_bytes().count(b"\n") for log in logs if log.exists())

    def kill(self, outcome: Outcome) -> None:
        """Kills at a random moment."""
        # All ranks have met when one has a batch: before that, the others wait for the missing one.
        moment = 1 + self.draw.randrange(EPOCHS * SAMPLES // BATCH - 1)
        until = time.monotonic() + LIMIT
        while self.delivered() < moment and any(rank.poll() is None for rank in self.ranks):
            if time.monotonic() > until:
                raise AssertionError("the job hangs before anything is killed")
            time.sleep(0.001)
        what = self.draw.choice(["rank", "engine", "rank and engine", "engine and rank"])
        is_running = all(rank.poll() is None for rank in self.ranks)
        outcome.in_mid_run += is_running and self.delivered() > 0
        for each in what.split(" and "):
            if each == "rank":
                rank = self.draw.randrange(RANKS)
                if self.ranks[rank].poll() is None:
                    self.killed.add(rank)
                    outcome.ranks += 1
                    self.ranks[rank].kill()
            else:
                for engine in self.engines():
                    outcome.engines += 1
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(engine, signal.SIGKILL)
            time.sleep(self.draw.choice([0, 0, 0.01]))

    def check(self, expected: list[list[list[int]]], outcome: Outcome) -> None:
        """Waits for the end, and notes what is wrong."""
        texts = []
        for number, rank in enumerate(self.ranks):
            try:
                text = rank.communicate(timeout=LIMIT)[0]
            except subprocess.TimeoutExpired:
                outcome.wrong.append(f"rank {number} hangs")
                continue
            texts.append(text)
            got = self._batches(number)
            # A rank may have ended before its signal.
            was_killed = number in self.killed and rank.returncode == -signal.SIGKILL
            if was_killed:
                if got != expected[number][: len(got)]:
                    outcome.wrong.append(f"killed rank {number} got {got}")
            elif rank.returncode != 0:
                outcome.wrong.append(f"rank {number} failed: {text[-2000:]}")
            elif got != expected[number]:
                outcome.wrong.append(f"rank {number} got other batches: {text[-2000:]}")
            waits = [line for line in text.splitlines() if line.startswith("longest ")]
            outcome.longest = max([outcome.longest, *(float(line.split()[1]) for line in waits)])
        self._check_leftovers(texts, outcome)

    def _batches(self, rank: int) -> list[list[int]]:
        log = self.folder / f"log{rank}"
        lines = log.read_text().splitlines() if log.exists() else []
        return [[int(id) for id in line.split()] for line in lines]

    def _check_leftovers(self, texts: list[str], outcome: Outcome) -> None:
        until = time.monotonic() + LIMIT
        while self.processes():
            if time.monotonic() > until:
                outcome.wrong.append(f"processes {self.processes()} are left")
                break
            time.sleep(0.01)
        if any(LOCKED in text for text in texts):
            outcome.wrong.append("the disk cache was locked by a process that has gone")

    def end(self) -> None:
        """Kills what runs."""
        for process in [*(rank.pid for rank in self.ranks), *self.processes()]:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)


def expected_batches(rank: int) -> list[list[int]]:
    """The batches of torch's DistributedSampler."""
    from torch.utils.data import DataLoader, DistributedSampler

    sampler: DistributedSampler[int] = DistributedSampler(
        range(SAMPLES),  # type: ignore[arg-type]
        num_replicas=RANKS,
        rank=rank,
        seed=5,
    )
    batches = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        plain = DataLoader(range(SAMPLES), batch_size=BATCH, sampler=sampler)  # type: ignore[arg-type]
        batches += [ids.tolist() for ids in plain]
    return batches


def shared_memory() -> set[str]:
    """What has a name in shared memory."""
    return set(os.listdir("/dev/shm"))


def run(kills: int, seed: int, data: Path, folder: Path) -> Outcome:
    """Runs jobs until so many processes were killed; stops at the first wrong one."""
    draw = random.Random(seed)
    cache = folder / "cache"
    expected = [expected_batches(rank) for rank in range(RANKS)]
    before = shared_memory()
    outcome = Outcome()
    while outcome.kills < kills and not outcome.wrong:
        job_folder = folder / f"job-{outcome.jobs}"
        job_folder.mkdir()
        job = KilledJob(job_folder, data, cache, draw)
        try:
            job.kill(outcome)
            job.check(expected, outcome)
        finally:
            job.end()
        # The next engine in the directory removes what a killed one has left there.
        _check_sockets(job.sockets, outcome)
        outcome.jobs += 1
        print(f"\r{outcome.kills} of {kills} killed, {outcome.jobs} jobs", end="", file=sys.stderr)
    if left := shared_memory() - before:
        outcome.wrong.append(f"shared memory {sorted(left)} is left")
    return outcome


def _check_sockets(sockets: Path, outcome: Outcome) -> None:
    from belady import _native

    os.environ["BELADY_NODE_DIR"] = str(sockets)
    _native.shared_node()
    if left := [path.name for path in sockets.iterdir() if path.suffix == ".sock"]:
        outcome.wrong.append(f"sockets {left} are left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="processes to kill")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed and when")
    args = parser.parse_args()
    from conftest import make_photos

    with tempfile.TemporaryDirectory(prefix="belady-kills-") as folder:
        data = make_photos(Path(folder) / "photos")
        outcome = run(args.kills, args.seed, data, Path(folder))
    print(
        json.dumps(
            {
                "ranks_killed": outcome.ranks,
                "engines_killed": outcome.engines,
                "jobs": outcome.jobs,
                "jobs_killed_in_mid_run": outcome.in_mid_run,
                "longest_wait_seconds": round(outcome.longest, 3),
                "wrong": outcome.wrong,
            },
            indent=2,
        )
    )
    sys.exit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    main()
