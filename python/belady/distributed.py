"""Which rank this process is, of how many, on this node and in all.

Asked in this order; the first that knows decides:

1. the arguments `rank` and `world_size`,
2. `torch.distributed`, if the program has initialised it,
3. `jax.distributed`, likewise,
4. what starters set: torchrun and Ray Train (`RANK`, `WORLD_SIZE`, ...), Open MPI
   (`OMPI_COMM_WORLD_*`), MPICH and its kin (`PMI_*`), Slurm (`SLURM_*`, within `srun`), or
   `BELADY_RANK` and `BELADY_RANKS`,
5. MPI, if the program uses mpi4py,
6. nobody: one process.

Variables of one starter that contradict each other, or of which one half is missing, are an
error: a rank that is guessed wrong trains on the wrong samples without anyone noticing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import arguments


class World(NamedTuple):
    """This process among those of the job."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    #: Processes of the job on this node; quotas are divided by it.
    local_size: int = 1


class _Starter(NamedTuple):
    name: str
    rank: str
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]


_STARTERS = (
    _Starter("belady", "BELADY_RANK", ("BELADY_RANKS",), (), ()),
    _Starter("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    _Starter(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Starter("PMI", "PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",)),
    _Starter(
        "Slurm",
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
    ),
    _Starter("JAX", "JAX_PROCESS_ID", ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"), (), ()),
)


def world(
    rank: int | None = None,
    world_size: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> World:
    """This process's place, by the first of the sources above that knows."""
    if rank is not None or world_size is not None:
        return _given(rank, world_size, environment)
    return (
        _torch(environment)
        or _jax(environment)
        or _environment(environment)
        or _mpi(environment)
        or World()
    )


def from_launcher(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Rank and size as what started this process says it, if it says anything sensible."""
    try:
        found = _environment(environment)
    except ValueError:
        return None
    return None if found is None else (found.rank, found.size)


def in_worker() -> bool:
    """Whether this is a worker process of torch's own `DataLoader`."""
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _given(rank: int | None, size: int | None, environment: Mapping[str, str]) -> World:
    if rank is None or size is None:
        have, miss = ("rank", "world_size") if size is None else ("world_size", "rank")
        raise ValueError(f"{have} is given without {miss}; give both, or neither")
    size = arguments.count(size, "world_size", least=1)
    rank = arguments.count(rank, "rank")
    if rank >= size:
        raise ValueError(f"rank {rank} is not below world_size {size}; ranks begin at 0")
    return _with_local(rank, size, environment)


def _torch(environment: Mapping[str, str]) -> World | None:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _with_local(distributed.get_rank(), distributed.get_world_size(), environment)


def _jax(environment: Mapping[str, str]) -> World | None:
    known = jax_state()
    return None if known is None else _with_local(known.process_id, known.num_processes, environment)


def jax_state() -> Any:
    """What jax knows of its processes; None if it was not told of any.

    `jax.process_index()` would take the devices into use.
    """
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)
    if distributed is None or not distributed.is_initialized():
        return None
    from jax._src import distributed as inner  # has no public name; others take it from there too

    return inner.global_state


def _mpi(environment: Mapping[str, str]) -> World | None:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return _with_local(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size(), environment)


def _with_local(rank: int, size: int, environment: Mapping[str, str]) -> World:
    """Adds what the environment knows about this node."""
    try:
        found = _environment(environment)
    except ValueError:
        found = None
    if found is not None and found.size == size:
        return World(rank, size, found.local_rank, found.local_size)
    # All on this node, as far as anyone can tell: quotas are then rather too small.
    return World(rank, size, rank, size)


def _environment(environment: Mapping[str, str]) -> World | None:
    for starter in _STARTERS:
        found = _ask(starter, environment)
        if found is not None:
            return found
    return None


def _ask(starter: _Starter, environment: Mapping[str, str]) -> World | None:
    if starter.name == "Slurm" and "SLURM_JOB_ID" in environment:
        # A batch script outside srun has the variables of rank 0, but is the only process.
        if "SLURM_STEP_ID" not in environment:
            return None
    size_name = next((name for name in starter.size if name in environment), None)
    has_rank = starter.rank in environment
    if not has_rank and size_name is None:
        return None
    if not has_rank or size_name is None:
        have = starter.rank if has_rank else size_name
        miss = starter.size[0] if has_rank else starter.rank
        if starter.name == "Slurm" and not has_rank:
            return None  # salloc sets the size for a shell that is no task
        raise ValueError(
            f"{have} is set but {miss} is not; set both as {starter.name} does, unset {have}, "
            "or pass rank and world_size"
        )
    rank, size = _whole(starter.rank, environment), _whole(size_name, environment)
    if size < 1 or rank >= size:
        raise ValueError(
            f"{starter.rank}={rank} and {size_name}={size} contradict each other; "
            "a rank is below the number of processes"
        )
    return _local(starter, rank, size, environment)


def _local(starter: _Starter, rank: int, size: int, environment: Mapping[str, str]) -> World:
    rank_name = next((name for name in starter.local_rank if name in environment), None)
    size_name = next((name for name in starter.local_size if name in environment), None)
    local_size = size if size_name is None else _whole(size_name, environment)
    local_rank = rank % local_size if rank_name is None else _whole(rank_name, environment)
    if local_size < 1 or local_size > size:
        raise ValueError(
            f"{size_name}={local_size} and a world of {size} contradict each other; "
            "a node has at least one process and at most all of them"
        )
    if local_rank >= local_size:
        raise ValueError(
            f"{rank_name}={local_rank} and {size_name or 'a world'} of {local_size} contradict "
            "each other; a local rank is below the number of processes on its node"
        )
    return World(rank, size, local_rank, local_size)


def _whole(name: str, environment: Mapping[str, str]) -> int:
    text = environment[name]
    try:
        by_node = name.startswith("SLURM") and "TASKS_PER_NODE" in name
        number = _of_this_node(text, environment) if by_node else int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError(f'{name} is "{text}", which is no number of processes; correct or unset it')
    return number


def _of_this_node(text: str, environment: Mapping[str, str]) -> int:
    """Slurm writes "4(x2),3" for two nodes with four tasks each and a third with three."""
    nodes: list[int] = []
    for part in text.split(","):
        tasks, _, times = part.rstrip(")").partition("(x")
        nodes += [int(tasks)] * int(times or 1)
    node = environment.get("SLURM_NODEID", "")
    if node.isdecimal() and int(node) < len(nodes):
        return nodes[int(node)]
    return max(nodes)  # quotas are then rather too small
