"""Which rank this process has, by arguments, libraries and launchers."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from belady._cluster.world import World, find_world

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "3"}
SLURM = {
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x1),3",
}


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def test_a_process_without_a_launcher_is_alone() -> None:
    assert find_world(environment={}) == World(0, 1, 0, 1)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        (TORCHRUN, World(5, 8, 1, 4)),
        (OPEN_MPI, World(2, 4, 0, 2)),
        (PMI, World(1, 3, 1, 3)),
        (SLURM, World(6, 7, 2, 4)),
        (TORCHRUN | OPEN_MPI | PMI | SLURM, World(5, 8, 1, 4)),
        (OPEN_MPI | PMI | SLURM, World(2, 4, 0, 2)),
        (PMI | SLURM, World(1, 3, 1, 3)),
    ],
)
def test_the_first_launcher_that_set_a_rank_decides(
    environment: dict[str, str], found: World
) -> None:
    assert find_world(environment=environment) == found


def test_arguments_come_first_and_the_node_is_taken_from_the_environment() -> None:
    assert find_world(3, 8, environment=TORCHRUN) == World(3, 8, 1, 4)
    assert find_world(1, 2, environment={}) == World(1, 2, 1, 2)


def test_torch_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    together = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 1,
        get_world_size=lambda: 2,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=together))
    assert find_world(environment=TORCHRUN).rank == 1


def test_a_batch_script_outside_srun_is_one_process() -> None:
    script = SLURM | {"SLURM_PROCID": "0", "SLURM_JOB_ID": "77"}
    assert find_world(environment=script) == World()
    assert find_world(environment=SLURM | {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}).size == 7


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"RANK": "1"}, "RANK is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is set but RANK is not"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 and WORLD_SIZE=4 contradict"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, 'RANK is "one"'),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, 'RANK is "-1"'),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "contradict"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "LOCAL_RANK=4 and LOCAL_WORLD_SIZE of 4 contradict"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9 and a world of 8"),
        ({"PMI_RANK": "0"}, "PMI_RANK is set but PMI_SIZE is not"),
    ],
)
def test_an_error_names_variables_that_are_half_set_or_contradict(
    environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        find_world(environment=environment)


@pytest.mark.parametrize(("node", "found"), [("0", 3), ("1", 4), ("2", 4), (None, 4)])
def test_slurm_counts_the_tasks_of_this_node(node: str | None, found: int) -> None:
    """Local rank 3 was refused, since the first node has only three tasks."""
    environment = {
        "SLURM_PROCID": "6",
        "SLURM_NTASKS": "11",
        "SLURM_LOCALID": "2",
        "SLURM_STEP_TASKS_PER_NODE": "3,4(x2)",
    } | ({} if node is None else {"SLURM_NODEID": node})
    assert find_world(environment=environment).local_size == found
    if found == 4:
        assert find_world(environment=environment | {"SLURM_LOCALID": "3"}).local_rank == 3
