"""One engine for all ranks of a node, as `DataLoader` uses it by itself: orders, bytes, faults, and
that nothing is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import node_kills
import pytest
from starting import LIMIT, PROLOGUE, finished, started, torchrun

from belady.__main__ import find_command

RANKS = 4
EPOCHS = 3

SCRIPT = """
import json, signal, time, belady
import numpy as np
rank = int(os.environ["BELADY_RANK"])
data = belady.open(os.environ["DATA"])
want = {sample: open(data.native.sample_path(sample), "rb").read() for sample in range(len(data))}
seen = []
def check(batch):
    samples, labels = batch
    for id, sample in zip(batch.ids, samples):
        assert bytes(sample) == want[id], id
    return list(batch.ids)
def engine_process():
    node = loader.engine._node
    return None if node is None else os.path.basename(node.native.socket)
loader = belady.DataLoader(data, batch_size=3, shuffle=True, seed=5,
                           cache=os.environ.get("CACHE", "ram:100KB"), epochs=3)
"""
READ = """
for epoch in range(3):
    seen.append([check(batch) for batch in loader])
print("seen", json.dumps(seen))
print("source", loader.stats()["engine"]["source"]["bytes"])
print("engine", engine_process())
"""


class Job:
    """The ranks of a job on this node, with a directory of sockets of their own.

    With `machines`, the machine of each rank, the ranks of each count as those of another one.
    As many engines as are `kept` outlive the job.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        photos: Path,
        ranks: int = RANKS,
        machines: list[int] | None = None,
        kept: int = 0,
        **more: str,
    ):
        file = folder / "rank.py"
        file.write_text(PROLOGUE + SCRIPT + script)
        self.sockets = folder / "sockets"
        self.machines = machines
        self.kept = kept
        self.ranks = [
            started(
                [sys.executable, file],
                **{
                    "BELADY_MEET": str(folder / "meeting"),
                    "BELADY_RANKS": str(ranks),
                    "BELADY_RANK": str(rank),
                    "BELADY_NODE_DIR": str(self.sockets_of(rank)),
                    "DATA": str(photos),
                    **({} if machines is None else {"BELADY_MACHINE": f"m{machines[rank]}"}),
                    **more,
                },
            )
            for rank in range(ranks)
        ]

    def sockets_of(self, rank: int) -> Path:
        """The directory of sockets on a rank's machine."""
        return self.sockets if self.machines is None else self.sockets / f"m{self.machines[rank]}"

    def engines(self, sockets: Path | None = None) -> list[int]:
        """The processes of node engines of this job."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and str(sockets or self.sockets) in (
                    (entry / "cmdline").read_bytes().decode(errors="replace")
                ):
                    found.append(int(entry.name))
        return found

    def engine(self, rank: int = 0) -> int:
        """Waits for the engine of a rank's machine."""
        until = time.monotonic() + LIMIT
        while not (found := self.engines(self.sockets_of(rank))):
            assert time.monotonic() < until, "no engine was started"
            time.sleep(0.02)
        assert len(found) == 1, found
        return found[0]

    def output(self, *, killed: frozenset[int] = frozenset()) -> list[str]:
        """The output of the ranks when all have ended; nothing is left then."""
        texts = [rank.communicate(timeout=LIMIT)[0] for rank in self.ranks]
        for number, rank in enumerate(self.ranks):
            assert (rank.returncode != 0) == (number in killed), texts[number]
        until = time.monotonic() + LIMIT
        while len(self.engines()) > self.kept:
            assert time.monotonic() < until, "the engine outlives its job"
            time.sleep(0.02)
        return texts


def said(text: str, what: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"{what} ")).split(" ", 1)[1]


def expected(rank: int, ranks: int = RANKS, samples: int = 60, batch: int = 3) -> list[object]:
    """The batches of torch's DistributedSampler."""
    from torch.utils.data import DataLoader, DistributedSampler

    sampler: DistributedSampler[int] = DistributedSampler(
        range(samples),  # type: ignore[arg-type]
        num_replicas=ranks,
        rank=rank,
        seed=5,
    )
    epochs = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        plain = DataLoader(range(samples), batch_size=batch, sampler=sampler)  # type: ignore[arg-type]
        epochs.append([ids.tolist() for ids in plain])
    return epochs


@pytest.fixture
def stopped() -> Iterator[list[Job]]:
    """Ends the processes of jobs that a test has started and not finished."""
    jobs: list[Job] = []
    yield jobs
    for job in jobs:
        for rank in job.ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.communicate()


def test_all_ranks_of_a_node_share_one_engine_in_torchs_order(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    job = Job(tmp_path, READ, photos)
    stopped.append(job)
    job.engine()
    texts = job.output()
    for rank, text in enumerate(texts):
        assert json.loads(said(text, "seen")) == expected(rank), text
        assert "WARNING" not in text, text
    assert len({said(text, "engine") for text in texts}) == 1
    total = sum(file.stat().st_size for file in photos.rglob("*.bin"))
    assert total > 100_000, "the cache holds a part"
    # The engine counts all ranks; the ring holds some samples at the end of an epoch.
    read = max(int(said(text, "source")) for text in texts)
    assert read <= total + 2 * (total - 100_000) + total // 20, (read, total)
    assert list(job.sockets.iterdir()) == []


@pytest.mark.parametrize("moment", ["start", "middle"])
def test_ranks_finish_with_engines_of_their_own_when_the_engine_is_killed(
    photos: Path, tmp_path: Path, stopped: list[Job], moment: str
) -> None:
    wait = """
for epoch in range(3):
    batches = []
    for number, batch in enumerate(loader):
        batches.append(check(batch))
        if epoch == 1 and number == 1 and rank == 0:
            open(os.environ["REACHED"], "w").close()
        if epoch == 1 and number == 1:
            while not os.path.exists(os.environ["KILLED"]):
                time.sleep(0.01)
    seen.append(batches)
print("seen", json.dumps(seen))
"""
    reached, killed = tmp_path / "reached", tmp_path / "killed"
    job = Job(tmp_path, wait, photos, REACHED=str(reached), KILLED=str(killed))
    stopped.append(job)
    engine = job.engine()
    while moment == "middle" and not reached.exists():
        assert job.ranks[0].poll() is None, job.ranks[0].communicate()[0]
        time.sleep(0.01)
    os.kill(engine, signal.SIGKILL)
    killed.touch()
    for rank, text in enumerate(job.output()):
        assert json.loads(said(text, "seen")) == expected(rank), text
        if moment == "middle":
            assert "continues with an engine of its own" in text, text


def test_a_rank_that_is_killed_leaves_the_others_their_batches(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    script = """
for epoch in range(3):
    batches = []
    for number, batch in enumerate(loader):
        batches.append(check(batch))
        if rank == 2 and (epoch, number) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
    seen.append(batches)
print("seen", json.dumps(seen))
"""
    job = Job(tmp_path, script, photos)
    stopped.append(job)
    texts = job.output(killed=frozenset({2}))
    for rank in (0, 1, 3):
        assert json.loads(said(texts[rank], "seen")) == expected(rank), texts[rank]


def test_ctrl_c_ends_the_ranks_and_their_engine(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    script = """
next(iter(loader))
open(os.environ["REACHED"] + str(rank), "w").close()
try:
    time.sleep(1000)
except KeyboardInterrupt:
    sys.exit(3)
"""
    reached = tmp_path / "reached"
    job = Job(tmp_path, script, photos, REACHED=str(reached))
    stopped.append(job)
    while not all(Path(f"{reached}{rank}").exists() for rank in range(RANKS)):
        assert all(rank.poll() is None for rank in job.ranks)
        time.sleep(0.02)
    for rank in job.ranks:
        os.killpg(rank.pid, signal.SIGINT)
    job.output(killed=frozenset(range(RANKS)))
    assert list(job.sockets.iterdir()) == []


def test_a_forked_child_that_outlives_its_rank_keeps_no_engine_alive(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    script = """
batches = iter(loader)
held = next(batches)
child = os.fork()
if child == 0:
    os.closerange(0, 3)
    time.sleep(1000)
print("child", child)
print("done", check(held))
os._exit(0)
"""
    job = Job(tmp_path, script, photos, ranks=2)
    stopped.append(job)
    texts = job.output()
    for text in texts:
        assert "done" in text
        # It still runs, although the engine has gone.
        os.kill(int(said(text, "child")), signal.SIGKILL)


def test_native_transforms_run_in_the_engine_and_give_the_same_arrays(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    script = """
import hashlib
from belady import transforms as T
def hashes(**more):
    loader = belady.DataLoader(data, batch_size=4, shuffle=True, seed=2, epochs=2,
                               transform=T.Compose([T.Raw("uint8", [-1]), T.ToDtype("float32")]),
                               collate_fn=lambda samples: samples, **more)
    made = []
    for epoch in range(2):
        for batch in loader:
            made.append([hashlib.sha1(np.asarray(array).tobytes()).hexdigest() for array, _ in batch])
    return made, loader.engine.node is not None
shared, at_node = hashes()
alone, here = hashes(peers=None)
assert at_node and not here
assert shared == alone
print("same")
"""
    job = Job(tmp_path, script, photos, ranks=2)
    stopped.append(job)
    for text in job.output():
        assert "same" in text, text


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"BELADY_NODE": "off"}, None),
        ({"BELADY_NODE_DIR": "/dev/null/no"}, "cannot hold the socket"),
        ({"BELADY_NODE_DIR": "/tmp/" + "d" * 120}, "a socket's has 107 at most"),
    ],
)
def test_ranks_without_a_node_engine_say_why_once_and_go_on(
    photos: Path, tmp_path: Path, stopped: list[Job], more: dict[str, str], reason: str | None
) -> None:
    job = Job(tmp_path, READ, photos, ranks=2, **more)
    stopped.append(job)
    texts = job.output()
    for rank, text in enumerate(texts):
        assert json.loads(said(text, "seen")) == expected(rank, 2), text
        assert said(text, "engine") == "None"
    warnings = [text.count("each process of this job uses an engine of its own") for text in texts]
    assert warnings == ([0, 0] if reason is None else [1, 0]), texts
    if reason is not None:
        assert reason in texts[0]
        with contextlib.suppress(OSError):
            Path(more["BELADY_NODE_DIR"]).rmdir()


def test_a_program_that_is_no_python_starts_no_engine(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    file = tmp_path / "sitecustomize.py"
    file.write_text("import sys; sys.executable = '/nowhere/python'\n")
    job = Job(tmp_path, READ, photos, ranks=2, PYTHONPATH=str(tmp_path))
    stopped.append(job)
    texts = job.output()
    assert "cannot start a node engine by `/nowhere/python`" in texts[0], texts[0]
    assert list(job.sockets.iterdir()) == []


@pytest.mark.parametrize("ranks", [4, 8])
def test_torchrun_runs_one_engine_that_is_gone_after_the_job(
    photos: Path, tmp_path: Path, ranks: int
) -> None:
    script = (
        PROLOGUE
        + """
import json, belady
from pathlib import Path
rank = int(os.environ["RANK"])
data = belady.open(os.environ["DATA"])
loader = belady.DataLoader(data, batch_size=3, shuffle=True, seed=5, cache="ram:70KB", epochs=12)
seen = [[list(batch.ids) for batch in loader] for epoch in range(12)]
commands = [(entry / "cmdline") for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
engines = 0
for command in commands:
    try:
        engines += os.environ["BELADY_NODE_DIR"] in command.read_bytes().decode(errors="replace")
    except OSError:
        pass
source = loader.stats()["engine"]["source"]["bytes"]
found = {"seen": seen, "engines": engines, "source": source}
Path(os.environ["OUT"], str(rank)).write_text(json.dumps(found))
"""
    )
    sockets, out = tmp_path / "sockets", tmp_path / "out"
    out.mkdir()
    more = {"BELADY_NODE_DIR": str(sockets), "DATA": str(photos), "OUT": str(out)}
    text = torchrun(tmp_path, script, ranks=ranks, **more)
    found = [json.loads((out / str(rank)).read_text()) for rank in range(ranks)]
    for rank, one in enumerate(found):
        assert one["seen"][:EPOCHS] == expected(rank, ranks), text
        assert one["engines"] == 1, "one engine process in the process list"
    total = sum(file.stat().st_size for file in photos.rglob("*.bin"))
    assert total > 70_000, "the cache holds a part"
    # The first epoch, and what does not fit in the others. Epochs as short as these are staged in
    # part before the first plan is there, and are read again.
    read = max(one["source"] for one in found)
    assert read <= total + 11 * (total - 70_000) + 2 * total, (read, total)
    assert list(sockets.iterdir()) == [], "the engine has gone"


def test_ranks_and_engines_that_are_killed_at_random_leave_nothing_and_change_no_batch(
    photos: Path, tmp_path: Path
) -> None:
    outcome = node_kills.run(
        kills=6, seed=int(os.environ.get("SEED", "0")), data=photos, folder=tmp_path
    )
    assert outcome.wrong == []
    assert outcome.longest < node_kills.READ_TIMEOUT, "no rank waits longer than the timeout"
    assert outcome.in_mid_run > 0


def test_programs_share_the_engine_that_outlives_them(photos: Path, tmp_path: Path) -> None:
    belady = [sys.executable, "-m", "belady", "node"]
    more = {"BELADY_NODE_DIR": str(tmp_path / "sockets"), "DATA": str(photos)}
    script = tmp_path / "program.py"
    script.write_text(
        PROLOGUE
        + """
import json, belady
data = belady.open(os.environ["DATA"])
want = [open(data.native.sample_path(sample), "rb").read() for sample in range(len(data))]
loader = belady.DataLoader(data, batch_size=3, shuffle=True, seed=5, epochs=3, writable=False)
assert (loader.engine.node is None) == (os.environ.get("BELADY_NODE") == "off")
seen = []
for epoch in range(3):
    seen.append([])
    for batch in loader:
        assert all(bytes(sample) == want[id] for id, sample in zip(batch.ids, batch[0]))
        seen[-1].append(list(batch.ids))
print("seen", json.dumps(seen))
"""
    )

    def source_bytes() -> int:
        status = json.loads(finished([*belady, "status", "--json"], **more))
        return int(status[0]["engines"][0]["source"]["bytes"])

    finished([*belady, "start", "--cache", "ram:10MiB"], **more)
    try:
        programs = [started([sys.executable, script], **more) for _ in range(2)]
        texts = [program.communicate(timeout=LIMIT)[0] for program in programs]
        total = sum(file.stat().st_size for file in photos.rglob("*.bin"))
        read = source_bytes()
        # A sample that both look up while one puts it into the cache may be read again.
        assert total <= read <= 1.05 * total, (read, total)
        texts.append(finished([sys.executable, script], **more))
        assert source_bytes() == read, "the next program finds all samples in the cache"
    finally:
        finished([*belady, "stop"], **more)
    alone = finished([sys.executable, script], **more, BELADY_NODE="off")
    for text in texts:
        assert said(text, "seen") == said(alone, "seen")


def test_worker_processes_read_from_the_memory_of_the_engine(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    script = """
def decode(sample, label):
    return len(sample), int(np.frombuffer(sample, np.uint8).sum())
def values(**more):
    loader = belady.DataLoader(data, batch_size=4, shuffle=True, seed=2, epochs=1, decode=decode,
                               num_workers=2, collate_fn=list, **more)
    return [batch for batch in loader], loader.engine.node is not None
shared, at_node = values()
alone, here = values(peers=None)
assert at_node and not here
assert shared == alone, (shared[:2], alone[:2])
print("same")
"""
    job = Job(tmp_path, script, photos, ranks=2)
    stopped.append(job)
    for text in job.output():
        assert "same" in text, text


def test_metrics_are_those_of_the_engine(photos: Path, tmp_path: Path, stopped: list[Job]) -> None:
    script = """
for batch in loader:
    pass
while loader.engine.stats()["delivered"]["samples"] < 60:
    time.sleep(0.01)
print("text", loader.engine.metrics_text().count("belady_"))
"""
    job = Job(tmp_path, script, photos)
    stopped.append(job)
    for text in job.output():
        assert int(said(text, "text")) > 10


PEERS = """
print("source", loader.stats()["engine"]["source"]["bytes"])
print("peers", loader.stats()["engine"]["peers"]["nodes"])
"""


@pytest.mark.parametrize("machines", [[0, 0, 1, 1], [0, 1, 0, 1]])
def test_each_machine_has_one_engine_and_they_share_their_caches(
    photos: Path, tmp_path: Path, stopped: list[Job], machines: list[int]
) -> None:
    job = Job(tmp_path, READ + PEERS, photos, machines=machines, CACHE="ram:50KB")
    stopped.append(job)
    engines = {job.engine(rank) for rank in range(RANKS)}
    assert len(engines) == 2
    texts = job.output()
    read: dict[int, int] = {}
    for rank, text in enumerate(texts):
        assert json.loads(said(text, "seen")) == expected(rank), text
        assert "WARNING" not in text, text
        # The other machine, and not three other ranks.
        assert said(text, "peers") == "1", text
        read[machines[rank]] = max(read.get(machines[rank], 0), int(said(text, "source")))
    total = sum(file.stat().st_size for file in photos.rglob("*.bin"))
    assert total > 100_000, "both caches together hold a part"
    assert sum(read.values()) <= total + 2 * (total - 100_000) + total // 10, (read, total)
    assert list(job.sockets.rglob("*.sock")) == []


KILLED_IN_MID_RUN = """
for epoch in range(3):
    batches = []
    for number, batch in enumerate(loader):
        batches.append(check(batch))
        if (epoch, number) == (1, 1):
            open(os.environ["REACHED"] + str(rank), "w").close()
            while not os.path.exists(os.environ["KILLED"]):
                time.sleep(0.01)
    seen.append(batches)
print("seen", json.dumps(seen))
before = loader.engine._node
loader = belady.DataLoader(data, batch_size=3, shuffle=True, seed=5, cache="ram:60KB", epochs=1)
print("again", json.dumps([check(batch) for batch in loader]))
assert loader.engine._node is not None and loader.engine._node is not before
"""


def test_machines_whose_engine_lives_go_on_when_that_of_another_is_killed(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    reached, killed = tmp_path / "reached", tmp_path / "killed"
    machines = [0, 0, 1, 1]
    more = {"REACHED": str(reached), "KILLED": str(killed)}
    job = Job(tmp_path, KILLED_IN_MID_RUN, photos, machines=machines, **more)
    stopped.append(job)
    engine = job.engine(rank=0)
    while not all(Path(f"{reached}{rank}").exists() for rank in range(RANKS)):
        assert all(rank.poll() is None for rank in job.ranks), job.ranks[0].communicate()[0]
        time.sleep(0.01)
    os.kill(engine, signal.SIGKILL)
    killed.touch()
    for rank, text in enumerate(job.output()):
        assert json.loads(said(text, "seen")) == expected(rank), text
        assert json.loads(said(text, "again")) == expected(rank)[0], text
        goes_on_alone = "continues with an engine of its own" in text
        assert goes_on_alone == (machines[rank] == 0), text


@contextlib.contextmanager
def kept_engines(folder: Path, machines: int, cache: str) -> Iterator[list[dict[str, str]]]:
    """Engines of `belady node start`, one a machine; gives the environment of their programs."""
    places = [{"BELADY_NODE_DIR": str(folder / "sockets" / f"m{at}")} for at in range(machines)]
    belady = [sys.executable, "-m", "belady", "node"]
    try:
        for place in places:
            finished([*belady, "start", "--cache", cache], **place)
        yield places
    finally:
        for place in places:
            started([*belady, "stop"], **place).communicate(timeout=LIMIT)


def kept_source_bytes(place: dict[str, str]) -> int:
    status = finished([sys.executable, "-m", "belady", "node", "status", "--json"], **place)
    return int(json.loads(status)[0]["engines"][0]["source"]["bytes"])


@pytest.mark.parametrize("machines", [[0, 0, 1, 1], [0, 1]])
def test_engines_that_outlive_jobs_are_peers_in_each_and_keep_their_caches(
    photos: Path, tmp_path: Path, stopped: list[Job], machines: list[int]
) -> None:
    ranks = len(machines)
    total = sum(file.stat().st_size for file in photos.rglob("*.bin"))
    read = []
    with kept_engines(tmp_path, 2, "ram:1MiB") as places:
        for _ in range(2):
            job = Job(
                tmp_path,
                READ + PEERS,
                photos,
                ranks=ranks,
                machines=machines,
                kept=2,
                CACHE="ram:1KB",
            )
            stopped.append(job)
            for rank, text in enumerate(job.output()):
                assert json.loads(said(text, "seen")) == expected(rank, ranks), text
                assert "WARNING" not in text, text
                assert (said(text, "engine"), said(text, "peers")) == ("node.sock", "1"), text
            read.append(sum(kept_source_bytes(place) for place in places))
            (tmp_path / "meeting").rename(tmp_path / f"meeting-{len(read)}")
    # Machines may read a sample that is on its way from the other one.
    assert total <= read[0] <= 1.1 * total, (read, total)
    assert read[1] == read[0], "the next job finds all samples in the caches"


def test_ranks_finish_alone_when_an_engine_that_outlives_jobs_is_killed(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    reached, killed = tmp_path / "reached", tmp_path / "killed"
    machines = [0, 0, 1, 1]
    with kept_engines(tmp_path, 2, "ram:60KB"):
        more = {"REACHED": str(reached), "KILLED": str(killed)}
        job = Job(tmp_path, KILLED_IN_MID_RUN, photos, machines=machines, kept=1, **more)
        stopped.append(job)
        engine = job.engine(rank=0)
        while not all(Path(f"{reached}{rank}").exists() for rank in range(RANKS)):
            assert all(rank.poll() is None for rank in job.ranks), job.ranks[0].communicate()[0]
            time.sleep(0.01)
        os.kill(engine, signal.SIGKILL)
        killed.touch()
        for rank, text in enumerate(job.output()):
            assert json.loads(said(text, "seen")) == expected(rank), text
            assert json.loads(said(text, "again")) == expected(rank)[0], text
            goes_on_alone = "continues with an engine of its own" in text
            assert goes_on_alone == (machines[rank] == 0), text


def test_belady_top_shows_each_engine_with_its_ranks(
    photos: Path, tmp_path: Path, stopped: list[Job]
) -> None:
    script = """
batches = iter(loader)
next(batches)
while not os.path.exists(os.environ["SHOWN"]):
    time.sleep(0.05)
for batch in batches:
    pass
"""
    shown = tmp_path / "shown"
    job = Job(tmp_path, script, photos, machines=[0, 1, 0, 1], SHOWN=str(shown))
    stopped.append(job)
    command = [str(find_command()), "top", "--once", "--meet", str(tmp_path / "meeting")]
    expected = [["0", "up"], ["r0"], ["r2"], ["1", "up"], ["r1"], ["r3"]]
    until = time.monotonic() + LIMIT
    while True:
        table = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line.split() for line in table.stdout.splitlines()[1:]]
        if [line[: len(want)] for line, want in zip(lines, expected, strict=False)] == expected:
            break
        assert time.monotonic() < until, (table.stdout, table.stderr)
        assert all(rank.poll() is None for rank in job.ranks)
        time.sleep(0.2)
    assert len(lines) == len(expected)
    shown.touch()
    job.output()


@pytest.mark.parametrize("killed", [{2}, {2, 3}, {0, 1}])
def test_ranks_of_a_machine_that_are_killed_leave_those_of_another_their_batches(
    photos: Path, tmp_path: Path, stopped: list[Job], killed: set[int]
) -> None:
    script = """
for epoch in range(3):
    batches = []
    for number, batch in enumerate(loader):
        batches.append(check(batch))
        if str(rank) in os.environ["DIES"] and (epoch, number) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
    seen.append(batches)
print("seen", json.dumps(seen))
"""
    dies = ",".join(map(str, killed))
    job = Job(tmp_path, script, photos, machines=[0, 0, 1, 1], DIES=dies)
    stopped.append(job)
    texts = job.output(killed=frozenset(killed))
    for rank in set(range(RANKS)) - killed:
        assert json.loads(said(texts[rank], "seen")) == expected(rank), texts[rank]


@pytest.mark.parametrize(
    ("more", "machines", "reason"),
    [
        ({"BELADY_NODE": "off"}, [0, 0, 1, 1], None),
        ({}, [0, 1, 2], None),
        ({}, [0, 0, 1], "the machines of this job have 1 or 2 processes"),
    ],
)
def test_machines_that_share_no_engines_say_why_once(
    photos: Path,
    tmp_path: Path,
    stopped: list[Job],
    more: dict[str, str],
    machines: list[int],
    reason: str | None,
) -> None:
    ranks = len(machines)
    job = Job(tmp_path, READ, photos, ranks=ranks, machines=machines, **more)
    stopped.append(job)
    texts = job.output()
    for rank, text in enumerate(texts):
        assert json.loads(said(text, "seen")) == expected(rank, ranks), text
        assert said(text, "engine") == "None"
    warnings = [text.count("each process of this job uses an engine of its own") for text in texts]
    assert warnings == [0 if reason is None else 1] + [0] * (ranks - 1), texts
    assert reason is None or reason in texts[0]
