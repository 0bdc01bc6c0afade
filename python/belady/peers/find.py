"""Where to meet: what was said, or what started this process.

Asked in this order, unless BELADY_MEET names a place; the first that is there decides:

1. `torch.distributed`, if the program has initialised it: its store,
2. `jax.distributed`, likewise,
3. mpi4py, if the program uses it, or was started by mpirun and it is installed,
4. the store of torchrun's agent,
5. what the environment says (Slurm, mpirun, a master's address), natively: with the job's key rank 0 is
   the meeting point, without it a directory in the user's home.

Who finds nothing has no peers.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from .. import _native, arguments
from ..distributed import World, from_launcher
from . import jax_store, mpi_world, torch_store
from .meeting import Meeting

_MPI_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")


class Place(ABC):
    """A place where ranks can meet."""

    name: str

    @abstractmethod
    def join(self, **options: Any) -> _native.Cluster:
        """Goes there, and comes back with all others."""


class PythonPlace(Place):
    """One that a library of Python's has."""

    def __init__(self, meeting: Meeting) -> None:
        self.name = meeting.place
        self._meeting = meeting

    def join(self, **options: Any) -> _native.Cluster:
        return _native.Cluster.join(self._meeting, **options)


class FoundPlace(Place):
    """One that the environment says."""

    def __init__(self, name: str) -> None:
        self.name = name

    def join(self, **options: Any) -> _native.Cluster:
        return _native.Cluster.found(**options)


class NativePlace(Place):
    """A host and a port, hosts, a directory, or MPI."""

    def __init__(self, place: str | list[str], world: World) -> None:
        self.name = place if isinstance(place, str) else ", ".join(place)
        self._place = place
        self._world = world

    def join(self, **options: Any) -> _native.Cluster:
        world = self._world
        return _native.Cluster.at(self._place, world.rank, world.size, **options)


def named(peers: object) -> str | list[str] | None:
    """What the user said; None for "alone"."""
    if peers is None or peers is False:
        return None
    if peers is True:
        return "auto"
    if isinstance(peers, os.PathLike):
        return os.path.abspath(arguments.path(peers, "peers"))
    if isinstance(peers, str) and peers:
        return arguments.path(peers, "peers") if peers.startswith("~") else peers
    if isinstance(peers, list | tuple) and peers and all(isinstance(it, str) for it in peers):
        return list(peers)
    raise TypeError(
        'peers has to be "auto", "HOST:PORT", a list of hosts, a directory, "mpi" or None, not '
        f"{peers!r}"
    )


def find(
    wanted: str | list[str],
    world: World,
    key: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Place | None:
    """The place for this rank, if there is one for a rank with this place in the world."""
    if wanted != "auto":
        return NativePlace(wanted, world)
    meeting = None if environment.get("BELADY_MEET") else _library(world, environment)
    if meeting is not None and (meeting.rank, meeting.size) == (world.rank, world.size):
        return PythonPlace(meeting)
    if from_launcher(environment) != (world.rank, world.size):
        return None  # ranks of the user's own, of which nobody else knows
    name = _native.meeting_place(key)
    return None if name is None else FoundPlace(name)


def _library(world: World, environment: Mapping[str, str]) -> Meeting | None:
    by_mpi = any(name in environment for name in _MPI_LAUNCHERS)
    return (
        torch_store.of_process_group(environment)
        or jax_store.of_jax()
        or mpi_world.of_mpi4py(by_mpi)
        or torch_store.of_agent(world.rank, world.size, environment)
    )
