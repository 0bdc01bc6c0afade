"""The rank of this process, in the job and on its node.

The first source that knows decides:

1. the arguments `rank` and `world_size`,
2. `torch.distributed`, if the program has initialised it,
3. `jax.distributed`, likewise,
4. the variables of launchers: torchrun and Ray Train (`RANK`, `WORLD_SIZE`, ...), Open MPI
   (`OMPI_COMM_WORLD_*`), MPICH and its relatives (`PMI_*`), Slurm (`SLURM_*`, within `srun`), JAX,
   or `BELADY_RANK` and `BELADY_RANKS`, read by the native module,
5. MPI, if the program uses mpi4py,
6. none: one process.

Variables of one launcher that contradict each other, or of which one half is missing, are an error:
a wrong guess would train on the wrong samples."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from .. import _native
from .._configuration import arguments

#: Environment variables by name; None for those of this process.
Environment = dict[str, str] | None


class World(NamedTuple):
    """This process among those of the job."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    #: Processes of the job on this node; quotas are divided by it.
    local_size: int = 1


def find_world(
    rank: int | None = None, world_size: int | None = None, environment: Environment = None
) -> World:
    """Returns this process's place, by the first of the sources above that knows."""
    if rank is not None or world_size is not None:
        return _given(rank, world_size, environment)
    return (
        _torch(environment)
        or _jax(environment)
        or _launched(environment)
        or _mpi(environment)
        or World()
    )


def from_launcher(environment: Environment = None) -> tuple[int, int] | None:
    """Returns rank and size as the launcher set them; None if it did not, or not sensibly."""
    try:
        found = _launched(environment)
    except ValueError:
        return None
    return None if found is None else (found.rank, found.size)


def in_worker() -> bool:
    """Whether this is a worker process of torch's own `DataLoader`."""
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _given(rank: int | None, size: int | None, environment: Environment) -> World:
    if rank is None or size is None:
        have, miss = ("rank", "world_size") if size is None else ("world_size", "rank")
        raise ValueError(f"{have} is given without {miss}; give both, or neither")
    size = arguments.count(size, "world_size", least=1)
    rank = arguments.count(rank, "rank")
    if rank >= size:
        raise ValueError(f"rank {rank} is not below world_size {size}; ranks begin at 0")
    return _with_local(rank, size, environment)


def _torch(environment: Environment) -> World | None:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _with_local(distributed.get_rank(), distributed.get_world_size(), environment)


def _jax(environment: Environment) -> World | None:
    known = jax_state()
    if known is None:
        return None
    return _with_local(known.process_id, known.num_processes, environment)


def jax_state() -> Any:
    """Returns the state of `jax.distributed`; None if it is not initialised.

    `jax.process_index()` would take the devices into use.
    """
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)
    if distributed is None or not distributed.is_initialized():
        return None
    from jax._src import distributed as inner  # has no public name; other libraries use it too

    return inner.global_state


def _mpi(environment: Environment) -> World | None:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return _with_local(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size(), environment)


def _with_local(rank: int, size: int, environment: Environment) -> World:
    """Adds what the launcher set about this node."""
    try:
        found = _launched(environment)
    except ValueError:
        found = None
    if found is not None and found.size == size:
        return World(rank, size, found.local_rank, found.local_size)
    # Perhaps all ranks are on this node: quotas are then too small rather than too large.
    return World(rank, size, rank, size)


def _launched(environment: Environment) -> World | None:
    found = _native.launcher(environment)
    return None if found is None else World(*found)
