"""Several processes, one cache: real jobs on this machine, under torchrun and by hand."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import make_photos
from starting import PROLOGUE, free_port, mpirun, started, torchrun

import belady
from belady._cluster.discovery import named
from belady._cluster.world import World

#: Reads some epochs, checks every byte, and writes down what it saw.
READ = """
import json
import belady

def read(loader, epochs, together):
    seen = []
    for epoch in range(epochs):
        ids = []
        for batch in loader:
            for sample in batch.samples:
                assert bytes(sample) == open(sample.path, "rb").read(), sample.path
            ids.append(list(batch.ids))
            together()
        seen.append(ids)
    return seen

def write(loader, seen, **more):
    engine = loader.stats()["engine"]
    rank = loader.engine.cluster.rank
    results = {"rank": rank, "seen": seen, "source": engine["source"]["samples"],
            "peers": engine["peers"], **more}
    with open(os.path.join(os.environ["OUT"], f"{rank}.json"), "w") as file:
        json.dump(results, file)
"""

#: A training with torch.distributed, in step.
TRAIN = (
    PROLOGUE
    + READ
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
data = belady.open(os.environ["DATA"])
loader = belady.DataLoader(data, batch_size=4, shuffle=True, seed=3, epochs=4,
                           cache=os.environ["CACHE"], staging="50KB")
assert loader.engine.cluster is belady.cluster()
seen = read(loader, 4, dist.barrier)
write(loader, seen)
dist.barrier()
loader.close()
dist.destroy_process_group()
"""
)


@pytest.fixture(autouse=True)
def _an_engine_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of one machine are peers of each other only if they share no engine."""
    monkeypatch.setenv("BELADY_NODE", "off")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def results(out: Path) -> list[dict[str, Any]]:
    """What ranks wrote down, by rank."""
    return sorted(
        (json.loads(file.read_text()) for file in out.iterdir()), key=lambda it: it["rank"]
    )


def epoch(ranks: list[dict[str, Any]], number: int) -> list[int]:
    """All ids of an epoch."""
    return sorted(id for rank in ranks for batch in rank["seen"][number] for id in batch)


def room(photos: Path, times: float) -> str:
    """A cache for the node that holds so many times the dataset, with what rounding costs."""
    data = belady.open(photos)
    return f"ram:{int(times * (data.total_bytes + 64 * len(data)))}"


@pytest.mark.parametrize("ranks", [2, 4])
def test_later_epochs_read_nothing_from_the_source(
    ranks: int, photos: Path, out: Path, tmp_path: Path
) -> None:
    cache = room(photos, 1.3)
    torchrun(tmp_path, TRAIN, ranks=ranks, DATA=str(photos), OUT=str(out), CACHE=cache)
    all_ = results(out)
    assert len(all_) == ranks
    for number in range(4):
        assert epoch(all_, number) == list(range(60))
    assert sum(rank["source"] for rank in all_) == 60, "each sample was read once in the whole run"
    for rank in all_:
        given = rank["peers"]["taken"]["samples"]  # pushed ahead by the ranks that had them
        assert given + rank["peers"]["read"]["samples"] > 20
    assert all(rank["peers"]["down"] == 0 for rank in all_)


def test_the_order_is_that_of_torch(photos: Path, out: Path, tmp_path: Path) -> None:
    import torch

    torchrun(tmp_path, TRAIN, ranks=2, DATA=str(photos), OUT=str(out), CACHE="ram:1MiB")
    for rank in results(out):
        sampler = torch.utils.data.DistributedSampler(
            range(60), num_replicas=2, rank=rank["rank"], shuffle=True, seed=3
        )
        for number, batches in enumerate(rank["seen"]):
            sampler.set_epoch(number)
            assert [id for batch in batches for id in batch] == list(sampler)


#: Without torch.distributed: torchrun's own store is where they meet.
UNINITIALISED = (
    PROLOGUE
    + READ
    + """
data = belady.open(os.environ["DATA"])
loader = belady.DataLoader(data, batch_size=5, shuffle=True, seed=None, epochs=3,
                           cache="ram:300KB", staging="50KB")
cluster = belady.cluster()
together = lambda: cluster.exchange("step", b"")
seen = read(loader, 3, together)
write(loader, seen, seed=loader.state_dict()["order"]["seed"])
together()
loader.close()
"""
)


def test_torchrun_alone_is_enough_and_a_seed_is_drawn_for_all(
    photos: Path, out: Path, tmp_path: Path
) -> None:
    torchrun(tmp_path, UNINITIALISED, ranks=2, DATA=str(photos), OUT=str(out))
    first, second = results(out)
    assert first["seed"] == second["seed"] != 0
    assert epoch([first, second], 2) == list(range(60))
    assert first["source"] + second["source"] < 90, "two epochs of three came from caches"


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI")
def test_mpirun(photos: Path, out: Path, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    mpirun(tmp_path, UNINITIALISED, ranks=3, DATA=str(photos), OUT=str(out))
    all_ = results(out)
    assert len({rank["seed"] for rank in all_}) == 1
    assert epoch(all_, 1) == list(range(60))
    assert sum(rank["source"] for rank in all_) < 90


def test_a_build_without_mpi_explains_how_to_install_one_with_it() -> None:
    with pytest.raises(belady.BeladyError, match='pip install -C build-args="--features mpi" .'):
        belady.cluster("mpi", rank=0, world_size=2)


#: Ranks by hand. The one that is named kills itself in the second epoch.
BY_HAND = (
    PROLOGUE
    + READ
    + """
import signal
data = belady.open(os.environ["DATA"])
belady.cluster(timeout=float(os.environ.get("TIMEOUT", "120")))
loader = belady.DataLoader(data, batch_size=4, shuffle=True, seed=1, epochs=5,
                           cache="ram:300KB", staging="50KB")
steps = 0
def together():
    global steps
    steps += 1
    if os.environ.get("DIES") == os.environ["BELADY_RANK"] and steps == 7:
        os.kill(os.getpid(), signal.SIGKILL)
seen = read(loader, 5, together)
write(loader, seen)
open(os.path.join(os.environ["DONE"], os.environ["BELADY_RANK"]), "w").close()
import time
while len(os.listdir(os.environ["DONE"])) < int(os.environ["SURVIVORS"]):
    time.sleep(0.01)
"""
)


def by_hand(folder: Path, script: str, ranks: list[int], size: int, **more: str) -> list[Any]:
    file = folder / "rank.py"
    file.write_text(script)
    common = {
        "BELADY_MEET": f"127.0.0.1:{free_port()}",
        "BELADY_RANKS": str(size),
        "BELADY_KEY": secrets.token_hex(32),
    } | more
    return [
        started([sys.executable, file], **(common | {"BELADY_RANK": str(rank)})) for rank in ranks
    ]


def test_when_one_of_three_ranks_is_killed_the_others_continue(
    photos: Path, out: Path, tmp_path: Path
) -> None:
    (tmp_path / "done").mkdir()
    processes = by_hand(
        tmp_path, BY_HAND, [0, 1, 2], 3,
        DATA=str(photos), OUT=str(out), DIES="2", DONE=str(tmp_path / "done"), SURVIVORS="2",
    )  # fmt: skip
    output = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, -9], output
    survivors = results(out)
    assert [rank["rank"] for rank in survivors] == [0, 1]
    for rank in survivors:
        expected = belady.DataLoader(
            belady.open(photos), batch_size=4, shuffle=True, seed=1, peers=None,
            rank=rank["rank"], world_size=3, cache="ram:300KB",
        )  # fmt: skip
        for number in range(5):
            expected.set_epoch(number)
            assert rank["seen"][number] == expected.peek()


#: Rank 0 makes a loader that rank 1 does not make, and ends with the first warning.
ALONE = (
    PROLOGUE
    + """
import logging
import torch.distributed as dist
import belady
from belady._cluster import rendezvous
rendezvous._WARN_AFTER = 0.2
dist.init_process_group("gloo")
data = belady.open(os.environ["DATA"])
if os.environ["MET"]:
    together = belady.DataLoader(data)
class Enough(logging.Handler):
    def emit(self, record):
        print(record.getMessage())
        os._exit(0)
if dist.get_rank() == 0:
    logging.getLogger("belady").addHandler(Enough(logging.WARNING))
    belady.DataLoader(data)
"""
)


@pytest.mark.parametrize("met", ["", "yes"])
def test_a_loader_on_rank_0_alone_names_the_missing_rank_and_peers_none(
    photos: Path, tmp_path: Path, met: str
) -> None:
    """It waited for half an hour before it named the argument."""
    output = torchrun(tmp_path, ALONE, ranks=2, DATA=str(photos), MET=met)
    assert "for rank 1 of 2 to come to" in output and "takes peers=None" in output, output


def test_ranks_with_different_keys_get_an_error(photos: Path, out: Path, tmp_path: Path) -> None:
    file = tmp_path / "rank.py"
    file.write_text(BY_HAND)
    common = {
        "BELADY_MEET": f"127.0.0.1:{free_port()}", "BELADY_RANKS": "2", "TIMEOUT": "8",
        "DATA": str(photos), "OUT": str(out),
    }  # fmt: skip
    processes = [
        started(
            [sys.executable, file],
            **(common | {"BELADY_RANK": str(rank), "BELADY_KEY": secrets.token_hex(32)}),
        )
        for rank in range(2)
    ]
    output = [process.communicate(timeout=240)[0] for process in processes]
    assert all(process.returncode == 1 for process in processes), output
    assert "key" in output[1].splitlines()[-1]
    assert "rank 1 of 2 did not come" in output[0].splitlines()[-1]


def test_the_error_of_an_incomplete_world_names_the_missing_ranks(
    photos: Path, out: Path, tmp_path: Path
) -> None:
    processes = by_hand(tmp_path, BY_HAND, [0, 2], 4, DATA=str(photos), OUT=str(out), TIMEOUT="6")
    for process in processes:
        output = process.communicate(timeout=240)[0]
        assert process.returncode == 1
        assert "ranks 1, 3 of 4 did not come" in output.splitlines()[-1], output


def test_without_a_key_ranks_do_not_meet_over_tcp(photos: Path, tmp_path: Path) -> None:
    (process,) = by_hand(tmp_path, BY_HAND, [0], 2, DATA=str(photos), BELADY_KEY="")
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 1
    assert "needs a key that all ranks share" in output.splitlines()[-1]


DISAGREE = (
    PROLOGUE
    + """
import belady
rank = int(os.environ["RANK"])
arguments = dict(batch_size=4, shuffle=True, seed=0) | eval(os.environ["DIFFERENT"])(rank)
try:
    belady.DataLoader(belady.open(os.environ["DATA"]), **arguments)
except belady.BeladyError as error:
    print(f"rank {rank}: {error}")
else:
    raise SystemExit("no rank has noticed")
"""
)


@pytest.mark.parametrize(
    ("different", "sentence"),
    [
        ("lambda rank: {'seed': 5 + rank // 2}", "rank 2 has seed 6, all others 5"),
        ("lambda rank: {'batch_size': 4 + rank // 2}", "rank 2 has batch_size 5, all others 4"),
        ("lambda rank: {'policy': ('nopfs', 'belady')[rank > 0]}", "rank 0 has policy nopfs"),
        (
            "lambda rank: {'policy': ('lobster,tau=5ms', 'lobster')[rank > 0]}",
            "rank 0 has policy lobster,tau=0.005s",
        ),
        ("lambda rank: {'shuffle': rank == 1}", "rank 1 has order distributed"),
    ],
)
def test_the_error_of_disagreeing_ranks_names_what_differs(
    different: str, sentence: str, photos: Path, tmp_path: Path
) -> None:
    output = torchrun(tmp_path, DISAGREE, ranks=3, DATA=str(photos), DIFFERENT=different)
    assert [f"rank {rank}: the ranks disagree: " in output for rank in range(3)] == [True] * 3
    assert output.count(sentence) == 3, output


OTHER_DATA = (
    PROLOGUE
    + """
import belady
rank = int(os.environ["RANK"])
data = belady.open(os.environ["DATA"] if rank == 0 else os.environ["OTHER"])
len(data)
try:
    belady.DataLoader(data, batch_size=4, shuffle=True)
except belady.BeladyError as error:
    print(f"rank {rank}: {error}")
"""
)


def test_ranks_with_different_datasets_get_an_error(photos: Path, tmp_path: Path) -> None:
    other = make_photos(tmp_path / "other", each=7)
    output = torchrun(tmp_path, OTHER_DATA, ranks=2, DATA=str(photos), OTHER=str(other))
    assert output.count("the ranks disagree: rank 0 has dataset") == 2
    assert "(60 samples)" in output and "(21 samples)" in output


LISTS = (
    PROLOGUE
    + """
import belady
from belady import _native
rank = int(os.environ["RANK"])
listed = []
class Watched:
    join, receive_listing = _native.Dataset.join, _native.Dataset.receive_listing
    @staticmethod
    def open(*arguments, **named):
        listed.append(rank)
        return real.open(*arguments, **named)
real, _native.Dataset = _native.Dataset, Watched
data = belady.join(belady.open(os.environ["DATA"]), belady.open(os.environ["DATA"]))
loader = belady.DataLoader(data, batch_size=4, shuffle=True, cache="ram:100KB")
assert len(data) == 120 and data.is_listed
print(f"rank {rank} has listed {len(listed)} times")
shared = belady.open(os.environ["DATA"], peers="auto")
assert len(shared) == 60 and shared.fingerprint == real.open(os.environ["DATA"]).fingerprint
batch = next(iter(loader))
assert bytes(batch.samples[0]) == open(batch.samples[0].path, "rb").read()
belady.cluster().exchange("end", b"")
"""
)


def test_one_rank_lists_and_the_others_get_its_list(photos: Path, tmp_path: Path) -> None:
    output = torchrun(tmp_path, LISTS, ranks=3, DATA=str(photos))
    assert "rank 0 has listed 2 times" in output
    assert "rank 1 has listed 0 times" in output and "rank 2 has listed 0 times" in output


WORKERS = (
    PROLOGUE
    + """
import torch, belady
data = belady.open(os.environ["DATA"])
def decode(sample, label):
    return len(sample)
loader = belady.DataLoader(data, batch_size=6, shuffle=True, cache="ram:300KB", num_workers=2,
                           multiprocessing_context="fork",
                           decode=decode, epochs=2)
for epoch in range(2):
    for lengths, labels in loader:
        pass
theirs = torch.utils.data.DataLoader(data, batch_size=10, num_workers=2, collate_fn=len,
                                     multiprocessing_context="fork")
assert sum(theirs) == 60
pid = os.fork()
if pid == 0:
    # A forked child has no cluster, and does not take the parent's down.
    assert belady.cluster() is None
    alone = belady.DataLoader(data, batch_size=6, cache="ram:10KB")
    assert alone.engine.cluster is None and sum(1 for _ in alone) == 5
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
belady.cluster().exchange("end", b"")
print("done")
"""
)


def test_workers_and_forked_children_leave_the_cluster_alone(photos: Path, tmp_path: Path) -> None:
    assert torchrun(tmp_path, WORKERS, ranks=2, DATA=str(photos)).count("done") == 2


SAMPLER = (
    PROLOGUE
    + """
import belady
rank = int(os.environ["RANK"])
loader = belady.DataLoader(belady.open(os.environ["DATA"]), batch_size=4, cache="ram:100KB",
                           sampler=range(rank, 60, 2))
assert [id for batch in loader for id in batch.ids] == list(range(rank, 60, 2))
one = belady.DataLoader(belady.open(os.environ["DATA"]), batch_size=4, cache="ram:100KB",
                        rank=0, world_size=1)
assert one.engine.cluster is None and sum(1 for _ in one) == 15
belady.cluster().exchange("end", b"")
"""
)


def test_a_cache_with_a_users_sampler_is_not_shared_and_warns(photos: Path, tmp_path: Path) -> None:
    output = torchrun(tmp_path, SAMPLER, ranks=2, DATA=str(photos))
    assert output.count("so its cache is not shared") == 2


#: Saves in mid-epoch, or goes on from there, with caches on disk.
ELASTIC = (
    PROLOGUE
    + READ
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = dist.get_world_size()
data = belady.open(os.environ["DATA"])
loader = belady.DataLoader(data, batch_size=12 // ranks, shuffle=True, seed=2, epochs=4,
                           cache=os.environ["CACHE"], staging="50KB")
state = os.environ["STATE"]
if os.path.exists(state):
    loader.load_state_dict(json.load(open(state)))
    seen = read(loader, 4 - loader.epoch, dist.barrier)
else:
    seen = read(loader, 2, dist.barrier)
    batches = iter(loader)
    seen.append([list(next(batches).ids) for _ in range(3)])
    if dist.get_rank() == 0:
        json.dump(loader.state_dict(), open(state, "w"))
write(loader, seen)
dist.barrier()
loader.close()
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_job_of_four_continues_with_fewer_ranks_and_its_caches(
    ranks: int, photos: Path, tmp_path: Path
) -> None:
    common = {
        "DATA": str(photos), "STATE": str(tmp_path / "state.json"),
        "CACHE": f"{tmp_path / 'cache'}:1MiB",
    }  # fmt: skip
    for name, size in (("before", 4), ("after", ranks)):
        (tmp_path / name).mkdir()
        torchrun(tmp_path, ELASTIC, ranks=size, OUT=str(tmp_path / name), **common)
    before, after = results(tmp_path / "before"), results(tmp_path / "after")
    assert epoch(before, 0) == epoch(before, 1) == list(range(60))
    assert sorted(epoch(before, 2) + epoch(after, 0)) == list(range(60))
    assert epoch(after, 1) == list(range(60))
    assert sum(rank["source"] for rank in before) < 90
    assert sum(rank["source"] for rank in after) < 30, "most samples were in the caches"


# What needs no other process.


def test_the_forms_of_peers() -> None:
    assert named("auto") == named(True) == "auto"
    assert named(None) is None and named(False) is None
    assert named(("a", "b")) == ["a", "b"]
    assert named(Path("/tmp/here")) == "/tmp/here"
    for wrong in (7, "", [], ["a", 1]):
        with pytest.raises(TypeError, match="peers has to be"):
            named(wrong)


def test_one_process_has_no_peers(data: belady.Dataset) -> None:
    assert belady.cluster() is None
    assert belady.cluster("127.0.0.1:1", key="0" * 64) is None, "one process has no peers"
    loader = belady.DataLoader(data, batch_size=4, seed=None, shuffle=True, cache="ram:100KB")
    assert loader.engine.cluster is None
    assert loader.state_dict()["order"]["seed"] > 0


def test_a_state_brings_the_seed_that_the_user_left_open(data: belady.Dataset) -> None:
    first = belady.DataLoader(data, batch_size=4, seed=None, shuffle=True, cache="ram:100KB")
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    rest = [list(batch.ids) for batch in batches]
    again = belady.DataLoader(data, batch_size=4, seed=None, shuffle=True, cache="ram:100KB")
    again.load_state_dict(state)
    assert [list(batch.ids) for batch in again] == rest
    named = belady.DataLoader(data, batch_size=4, seed=1, shuffle=True, cache="ram:100KB")
    with pytest.raises(ValueError, match="seed"):
        named.load_state_dict(state)


def test_ranks_without_a_rendezvous_work_alone_with_one_warning(
    data: belady.Dataset, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("belady._cluster.cluster._warned", False)
    for rank in range(2):
        loader = belady.DataLoader(data, batch_size=4, rank=rank, world_size=2, cache="ram:100KB")
        assert loader.engine.cluster is None
    assert caplog.text.count("belady found no place where the 2 processes") == 1
    with pytest.raises(ValueError, match="2 processes have to agree on a seed"):
        belady.DataLoader(data, batch_size=4, seed=None, rank=0, world_size=2)


def test_a_key_without_peers_is_a_mistake(data: belady.Dataset) -> None:
    with pytest.raises(ValueError, match="key is for peers"):
        belady.DataLoader(data, peers=None, key="/tmp/key")
    with pytest.raises(ValueError, match="belong to the engine"):
        belady.DataLoader(data, engine=belady.Engine("ram:1KB"), peers="a:1")


def test_a_dataset_waits_on_ranks_beyond_the_first(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    data = belady.open(photos)
    assert not data.is_listed
    joined = belady.join(data, data)
    assert not joined.is_listed
    assert len(joined) == 120 and data.is_listed
    assert belady.open(photos).fingerprint == data.fingerprint
    monkeypatch.setenv("RANK", "0")
    assert belady.open(photos).is_listed


def test_the_cluster_of_another_world_is_not_this_loaders() -> None:
    cluster = belady.Cluster.__new__(belady.Cluster)
    cluster.world = World(1, 4)
    assert cluster.includes(World(1, 4, 0, 2)) and not cluster.includes(World(0, 1))
