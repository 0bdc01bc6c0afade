"""Peers over MPI, with the wheel of docs/mpi.md: run by `make test-mpi`."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest
from starting import PROLOGUE, finished, mpirun
from test_peers import READ, epoch, out, results

__all__ = ["out"]

BELADY = "import belady\n"
MPI4PY = "from mpi4py import MPI\n"

#: Every rank reads all epochs, and names the MPI libraries that it has loaded.
OVER_MPI = """
data = belady.open(os.environ["DATA"])
loader = belady.DataLoader(data, batch_size=4, shuffle=True, seed=3, epochs=3,
                           cache="ram:300KB", staging="50KB", peers="mpi")
cluster = belady.cluster()
assert cluster.place == "mpi" and cluster.size == int(os.environ["OMPI_COMM_WORLD_SIZE"])
seen = read(loader, 3, lambda: cluster.exchange("step", b""))
maps = {line.split()[-1] for line in open("/proc/self/maps") if "/libmpi" in line}
write(loader, seen, libraries=sorted(maps))
cluster.exchange("end", b"")
loader.close()
"""


@pytest.mark.parametrize(
    ("imports", "ranks"),
    [(BELADY + MPI4PY, 2), (MPI4PY + BELADY, 2), (BELADY, 4)],
    ids=["belady first", "mpi4py first", "without mpi4py"],
)
def test_samples_travel_by_the_one_mpi_of_the_process(
    imports: str, ranks: int, photos: Path, out: Path, tmp_path: Path
) -> None:
    script = PROLOGUE + imports + READ + OVER_MPI
    # The ranks of one machine would share an engine, and exchange nothing.
    mpirun(tmp_path, script, ranks=ranks, DATA=str(photos), OUT=str(out), BELADY_NODE="off")
    all_ = results(out)
    assert len(all_) == ranks
    for number in range(3):
        assert epoch(all_, number) == list(range(60))
    assert sum(rank["source"] for rank in all_) == 60, "each sample was read once in the whole run"
    for rank in all_:
        peers = rank["peers"]
        assert peers["taken"]["samples"] + peers["read"]["samples"] > 0
        assert len(rank["libraries"]) == 1, rank["libraries"]
        assert "site-packages" not in rank["libraries"][0]


def test_the_wheel_has_no_mpi_of_its_own() -> None:
    belady = importlib.metadata.distribution("belady")
    assert not [file for file in belady.files or [] if "libmpi" in file.name]
    wheel = belady.read_text("WHEEL")
    # Which PyPI refuses, since it runs only beside the MPI that it was built for.
    assert wheel is not None and "Tag: cp311-abi3-linux_" in wheel


def test_a_rank_that_mpirun_did_not_start_gets_an_error(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(BELADY + 'belady.cluster("mpi")')
    output = finished([sys.executable, script], fails=True, RANK="1", WORLD_SIZE="2")
    assert (
        "this process is rank 1 of 2 in its job and rank 0 of 1 in MPI: start it with the" in output
    )
    assert "Open MPI" in output
