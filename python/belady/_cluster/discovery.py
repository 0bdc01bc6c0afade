"""Finds where the ranks of a job meet.

A `peers` argument names the place. With "auto" the first that exists decides, unless BELADY_MEET
names one:

1. the store of `torch.distributed`, if the program has initialised it,
2. the store of `jax.distributed`, likewise,
3. mpi4py, if the program uses it, or mpirun launched it and mpi4py is installed,
4. the store of torchrun's agent,
5. the environment (Slurm, mpirun, a master's address), natively: with the job's key rank 0 is the
   rendezvous server, without it the ranks meet in a directory in the user's home.

A rank that finds none has no peers.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from .. import _native
from .._configuration import arguments
from . import jax_store, mpi_world, torch_store
from .rendezvous import Rendezvous
from .world import Environment, World, from_launcher

_MPI_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")


class RendezvousPlace(ABC):
    """A place where ranks meet."""

    name: str

    @abstractmethod
    def join(self, **options: Any) -> _native.Cluster:
        """Meets all other ranks there."""


class LibraryPlace(RendezvousPlace):
    """The store of a Python library."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.name = rendezvous.place
        self._rendezvous = rendezvous

    def join(self, **options: Any) -> _native.Cluster:
        return _native.Cluster.join(self._rendezvous, **options)


class EnvironmentPlace(RendezvousPlace):
    """The place that the environment names."""

    def __init__(self, name: str) -> None:
        self.name = name

    def join(self, **options: Any) -> _native.Cluster:
        return _native.Cluster.join_from_environment(**options)


class NamedPlace(RendezvousPlace):
    """The place that the user named: a host and a port, hosts, a directory, or MPI."""

    def __init__(self, place: str | list[str], world: World) -> None:
        self.name = place if isinstance(place, str) else ", ".join(place)
        self._place = place
        self._world = world

    def join(self, **options: Any) -> _native.Cluster:
        world = self._world
        return _native.Cluster.join_at(self._place, world.rank, world.size, **options)


def named(peers: object) -> str | list[str] | None:
    """Returns the place that `peers` names; None for no peers."""
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
    environment: Environment = None,
) -> RendezvousPlace | None:
    """Returns the place where this rank meets the others; None if there is none."""
    variables = os.environ if environment is None else environment
    if wanted != "auto":
        return NamedPlace(wanted, world)
    store = None if variables.get("BELADY_MEET") else _library(world, variables)
    if store is not None and (store.rank, store.size) == (world.rank, world.size):
        return LibraryPlace(store)
    if from_launcher(environment) != (world.rank, world.size):
        return None  # the user's own ranks, which the launcher does not know
    name = _native.rendezvous_address(key)
    return None if name is None else EnvironmentPlace(name)


def _library(world: World, variables: Mapping[str, str]) -> Rendezvous | None:
    by_mpi = any(name in variables for name in _MPI_LAUNCHERS)
    return (
        torch_store.of_process_group(variables)
        or jax_store.of_jax()
        or mpi_world.of_mpi4py(by_mpi)
        or torch_store.of_agent(world.rank, world.size, variables)
    )
