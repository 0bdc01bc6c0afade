"""Which engine the ranks of a node use: all ranks of the job decide the same."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from typing import Any

from .. import _native
from .._cluster.cluster import Cluster
from .._cluster.machines import Machines
from .._cluster.world import World, in_worker
from ..errors import BeladyError
from . import process

log = logging.getLogger("belady")

#: The variable that turns node engines off.
_VARIABLE = "BELADY_NODE"


class Node:
    """This process's connection to the engine that serves all ranks of its node."""

    def __init__(
        self, native: _native.NodeConnection, run: int, cluster: Cluster | None = None
    ) -> None:
        self.native = native
        #: Drawn once for the ranks that share the engine.
        self.run = run
        #: Whether the engine has ended.
        self.is_lost = False
        self.pid = os.getpid()
        self._cluster = cluster
        self._engines = 0

    def engine(self, **options: Any) -> _native.NodeEngine:
        """Returns an engine of the process. All ranks make the same ones in the same order."""
        self._engines += 1
        world = World() if self._cluster is None else self._cluster.world
        return _native.NodeEngine(
            self.native,
            run=self.run,
            number=self._engines,
            rank=world.local_rank,
            ranks=world.local_size,
            cluster=None if self._cluster is None else self._cluster.native,
            **options,
        )


_lock = threading.Lock()
#: The engine of the job's ranks on this machine.
_of_ranks: Node | None = None
#: The engine that outlives jobs, for loaders of this process alone.
_outliving: Node | None = None


def of_job(cluster: Cluster | None, world: World) -> Node | None:
    """Returns the engine of this node; None for an engine of this process.

    The ranks of a machine share one, and the engines of several machines are each other's peers.
    Collective: all ranks call it. Engines that outlive jobs are used where every machine has one.
    """
    global _of_ranks, _outliving
    if world.size > 1 if cluster is None else cluster.size == 1:
        return None
    with _lock:
        if cluster is None:
            _outliving = _outliving if _is_usable(_outliving) else _shared()
            return _outliving
        mine = [_is_usable(_of_ranks), cluster.first_here, _kept() is not None]
        told = _told(cluster, "an engine", mine)
        if not all(have for have, _, _ in told):
            machines = Machines.of([first for _, first, _ in told])
            _of_ranks = _connected(cluster, machines, all(kept for _, _, kept in told))
        return _of_ranks


def _is_usable(node: Node | None) -> bool:
    return node is not None and not node.is_lost and node.pid == os.getpid()


def _kept() -> str | None:
    """Returns the socket of the engine of this machine that outlives jobs, if one runs."""
    return None if _wish() is not None else _native.shared_node()


def _shared() -> Node | None:
    """Connects with the engine that outlives jobs, if one runs."""
    socket = None if in_worker() else _kept()
    if socket is None:
        return None
    try:
        return Node(_native.NodeConnection(socket), secrets.randbits(63))
    except BeladyError as error:
        log.warning("%s; this process uses an engine of its own", error)
        return None


def _connected(cluster: Cluster, machines: Machines, kept: bool) -> Node | None:
    """Connects all ranks with an engine on each machine; None if a rank cannot.

    Engines that are not `kept`, which outlive jobs, are started."""
    problem = _misfit(cluster, machines, kept)
    if problem is not None:
        _say(cluster, problem if _wish() is None else _OFF)
        return None
    first = cluster.world.local_rank == 0
    offer, found = _offer(cluster, machines, kept) if first else (None, None)
    offers = _told(cluster, "the engines of the nodes", offer)
    errors = [offer["error"] for offer in offers if offer is not None and "error" in offer]
    error = _wish() or next(iter(errors), None)
    if error is None:
        here = offers[cluster.first_here]
        try:
            if found is None:
                found = Node(_native.NodeConnection(here["socket"]), here["run"], cluster)
            elif len(machines.ranks) > 1:
                found.native.join(offers[0]["meeting"])
        except BeladyError as raised:
            error = str(raised)
    errors = _told(cluster, "the connections with the engines of the nodes", error)
    problem = next((error for error in errors if error is not None), None)
    if problem is None:
        return found
    _say(cluster, problem)
    return None


def _misfit(cluster: Cluster, machines: Machines, kept: bool) -> str | None:
    """Returns why ranks on these machines have engines of their own: the same on all ranks."""
    if machines.sizes == [1] and not kept:
        return _OFF  # an engine a machine in any case
    if len(machines.ranks) == 1:
        return None
    if not cluster.native.is_over_tcp:
        return _OFF  # MPI's connections belong to the processes that mpirun has started
    if len(machines.sizes) > 1:
        sizes = " or ".join(map(str, machines.sizes))
        return (
            f"the machines of this job have {sizes} processes, and engines that serve all "
            "processes of a machine need equal numbers"
        )
    return None


def _say(cluster: Cluster, problem: str) -> None:
    if problem != _OFF and cluster.rank == 0:
        log.warning("%s; each process of this job uses an engine of its own", problem)


_OFF = "off"


def _wish() -> str | None:
    return _OFF if os.environ.get(_VARIABLE, "").lower() in ("off", "0", "no") else None


def _offer(cluster: Cluster, machines: Machines, kept: bool) -> tuple[dict[str, Any], Node | None]:
    """Connects with the engine of this machine, and starts it unless it is `kept`.

    Returns how the others reach it, or why they cannot."""
    if _wish() is not None:
        return {"error": _OFF}, None
    run = secrets.randbits(63)
    several = len(machines.ranks) > 1
    try:
        # One that has ended since then is replaced.
        socket = (_kept() if kept else None) or process.start(f"{run:016x}")
        found = Node(_native.NodeConnection(socket), run, cluster)
        meeting = _meeting(found, cluster, machines) if several else None
    except (BeladyError, OSError) as error:
        return {"error": str(error)}, None
    return {"socket": socket, "run": run, "meeting": meeting}, found


def _meeting(node: Node, cluster: Cluster, machines: Machines) -> str | None:
    """Tells an engine of its place among the machines; returns where that of rank 0 listens."""
    at = machines.machine_of(cluster.rank)
    return node.native.meet(cluster.native, node.run, at, len(machines.ranks), machines.numbering)


def _told(cluster: Cluster, what: str, mine: Any) -> list[Any]:
    return [json.loads(theirs) for theirs in cluster.exchange(what, json.dumps(mine).encode())]
