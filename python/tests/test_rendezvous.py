"""Rendezvous at the stores of torch and jax, and through MPI, in real processes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from starting import PROLOGUE, free_port, mpirun, started, torchrun

from belady._cluster import rendezvous
from belady._cluster.rendezvous import Store, ranks
from belady.errors import BeladyError

#: Each rank exchanges small and large values, twice, and prints what it got.
EXCHANGE = """
mine = lambda name: f"{name} of {meeting.rank}".encode()
for name in ("first", "second"):
    assert meeting.exchange(name, mine(name), 60.0) == [
        f"{name} of {rank}".encode() for rank in range(meeting.size)
    ]
large = meeting.exchange("large", bytes([meeting.rank]) * (5 << 19), 60.0)
assert [len(value) for value in large] == [5 << 19] * meeting.size
assert [value[-1] for value in large] == list(range(meeting.size))
assert meeting.exchange("empty", b"", 60.0) == [b""] * meeting.size
print(f"rank {meeting.rank} of {meeting.size} at {meeting.place}")
"""

#: Values that all ranks have released are deleted, and no others.
RELEASE = """
meeting.release(["first", "large"])
meeting.exchange("released", b"", 60.0)
assert meeting.has_all([f"second/{rank}" for rank in range(meeting.size)])
gone = ["first/0", "large/0", "large/0/0", "large/1/2", "first/released"]
assert not any(meeting.has_all([key]) for key in gone)
"""

AGENT = """
import os, torch
from belady._cluster import torch_store
meeting = torch_store.of_agent(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
"""

PROCESS_GROUP = """
import torch
from belady._cluster import torch_store
assert torch_store.of_process_group() is None
torch.distributed.init_process_group("gloo")
meeting = torch_store.of_process_group()
"""

MPI4PY = """
from belady._cluster import mpi_world
meeting = mpi_world.of_mpi4py(True)
"""

JAX = """
import os, jax
from belady._cluster.world import find_world as world
from belady._cluster import jax_store
assert jax_store.of_jax() is None
jax.distributed.initialize("127.0.0.1:{port}", num_processes=2, process_id=int(os.environ["NUMBER"]))
meeting = jax_store.of_jax()
assert world()[:2] == (int(os.environ["NUMBER"]), 2)
"""


@pytest.mark.parametrize("made", [AGENT, PROCESS_GROUP])
def test_torch(made: str, tmp_path: Path) -> None:
    output = torchrun(tmp_path, PROLOGUE + made + EXCHANGE + RELEASE, ranks=4)
    assert [f"rank {rank} of 4" in output for rank in range(4)] == [True] * 4


needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI")


@needs_mpirun
def test_mpi4py(tmp_path: Path) -> None:
    output = mpirun(tmp_path, PROLOGUE + MPI4PY + EXCHANGE, ranks=3)
    assert [f"rank {rank} of 3" in output for rank in range(3)] == [True] * 3


#: Rank 0 comes late, and the others note the pauses in which they wait for it.
LATE = """
import time
from belady._cluster import rendezvous as module
pauses = []
sleep = time.sleep
class Clock:
    monotonic = time.monotonic
    sleep = lambda seconds: (pauses.append(seconds), sleep(seconds))
module.time = Clock
meeting.exchange("early", b"", 60.0)
if meeting.rank == 0:
    sleep(0.5)
meeting.exchange("late", b"", 60.0)
assert meeting.rank == 0 or len(pauses) > 1
print(f"rank {meeting.rank} paused for at most {max(pauses, default=0) * 1000:g} ms")
"""


@needs_mpirun
def test_mpi_is_called_often_because_messages_move_only_then(tmp_path: Path) -> None:
    output = mpirun(tmp_path, PROLOGUE + MPI4PY + LATE, ranks=2)
    assert "rank 1 paused for at most 2 ms" in output


@needs_mpirun
def test_a_process_may_end_after_a_large_exchange_by_mpi(tmp_path: Path) -> None:
    large = 'meeting.exchange("large", bytes(4 << 20), 60.0)'
    mpirun(tmp_path, PROLOGUE + MPI4PY + large, ranks=3)


#: Rank 2 comes to another exchange than the others.
ANOTHER = """
from belady.errors import BeladyError
try:
    meeting.exchange("a loader" if meeting.rank < 2 else "an engine", b"", 60.0)
except BeladyError as error:
    print(f"rank {meeting.rank} got: {error}")
"""


@needs_mpirun
def test_ranks_with_different_exchanges_over_mpi_all_get_an_error(tmp_path: Path) -> None:
    output = mpirun(tmp_path, PROLOGUE + MPI4PY + ANOTHER, ranks=3)
    for rank in range(3):
        assert (
            f"rank {rank} got: rank 0 exchanges a loader and rank 2 exchanges an engine" in output
        )


def test_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    script = tmp_path / "rank.py"
    script.write_text(PROLOGUE + JAX.replace("{port}", str(free_port())) + EXCHANGE + RELEASE)
    processes = [
        started([sys.executable, script], NUMBER=str(number), JAX_PLATFORMS="cpu")
        for number in range(2)
    ]
    for number, process in enumerate(processes):
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
        assert f"rank {number} of 2 at the store of jax.distributed" in output


class Dictionary(Store):
    """A store in this process."""

    place = "a dictionary"

    def __init__(self, rank: int, size: int, values: dict[str, bytes]) -> None:
        super().__init__(rank, size)
        self._values = values

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def has_all(self, keys: object) -> bool:
        return all(key in self._values for key in keys)  # type: ignore[attr-defined]

    def get(self, keys: object) -> list[bytes]:
        return [self._values[key] for key in keys]  # type: ignore[attr-defined]

    def add_one(self, key: str) -> int:
        self._values[key] = b"%d" % (int(self._values.get(key, b"0")) + 1)
        return int(self._values[key])

    def delete(self, key: str) -> None:
        self._values.pop(key, None)


def test_a_store_keeps_nothing_that_all_ranks_have_released() -> None:
    """Each loader left its keys there for ever."""
    values: dict[str, bytes] = {}
    seats = [Dictionary(rank, 2, values) for rank in range(2)]
    for name in ("small", "large", "kept"):
        seats[0]._give(f"{name}/0", b"x" * (3 << 20 if name == "large" else 1))
        seats[1]._give(f"{name}/1", b"y")
    seats[0].release(["small", "large", "kept", "never come to"])
    assert "small/0" in values
    seats[1].release(["small", "large", "never come to"])
    assert sorted(values) == ["kept/0", "kept/1", "kept/released"]


def test_missing_ranks_are_named() -> None:
    values: dict[str, bytes] = {}
    for rank in (1, 3):
        with pytest.raises(BeladyError):
            Dictionary(rank, 4, values).exchange("names", b"x", 0.01)
    with pytest.raises(
        BeladyError, match="ranks 0, 2 of 4 did not come to a dictionary to exchange names"
    ):
        Dictionary(1, 4, values).exchange("names", b"x", 0.02)
    Dictionary(0, 4, values).set("names/0", b"=")
    with pytest.raises(BeladyError, match="rank 2 of 4 did not come"):
        Dictionary(1, 4, values).exchange("names", b"x", 0.02)
    assert Dictionary(2, 4, values).exchange("names", b"y", 1) == [b"", b"x", b"y", b"x"]


def test_a_missing_rank_is_named_while_it_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was logged once, after 15 seconds."""
    assert rendezvous._WARN_AFTER <= 5.0
    monkeypatch.setattr(rendezvous, "_WARN_AFTER", 0.01)
    with pytest.raises(BeladyError):
        Dictionary(1, 3, {}).exchange("names", b"x", 0.2)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) > 1 and all("ranks 0, 2 of 3" in line for line in warnings), warnings
    assert all("peers=None" in line for line in warnings), warnings


def test_ranks_are_named_in_words() -> None:
    assert ranks([3]) == "rank 3"
    assert ranks([0, 2]) == "ranks 0, 2"


def test_without_a_launcher_there_is_no_rendezvous() -> None:
    from belady._cluster import jax_store, mpi_world, torch_store

    assert torch_store.of_process_group() is None
    assert torch_store.of_agent(0, 2, {}) is None
    assert jax_store.of_jax() is None
    assert mpi_world.of_mpi4py(False) is None
