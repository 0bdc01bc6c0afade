"""Which engine the ranks of a node use: all of them decide the same."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from typing import Any

from .. import _native
from .._cluster.cluster import Cluster
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
        self._world = World() if cluster is None else cluster.world
        self._engines = 0

    def engine(self, **options: Any) -> _native.NodeEngine:
        """Returns an engine of the process. All ranks make the same ones in the same order."""
        self._engines += 1
        return _native.NodeEngine(
            self.native,
            run=self.run,
            number=self._engines,
            rank=self._world.local_rank,
            ranks=self._world.local_size,
            **options,
        )


_lock = threading.Lock()
_node: Node | None = None


def of_job(cluster: Cluster | None, world: World) -> Node | None:
    """Returns the engine of this node; None for an engine of this process.

    The ranks of a job share one if all of them are here. Collective: all ranks call it. A job of
    one process uses the engine that outlives jobs, if one runs.
    """
    global _node
    if cluster is not None and (cluster.size == 1 or cluster.world.local_size != cluster.size):
        return None
    if cluster is None and world.size > 1:
        return None
    with _lock:
        have = _node is not None and not _node.is_lost and _node.pid == os.getpid()
        if cluster is None:
            _node = _node if have else _shared()
        elif not all(_told(cluster, "an engine", have)):
            _node = _connected(cluster)
        return _node


def _shared() -> Node | None:
    """Connects with the engine that outlives jobs, if one runs."""
    if _wish() is not None or in_worker():
        return None
    socket = _native.shared_node()
    if socket is None:
        return None
    try:
        return Node(_native.NodeConnection(socket), secrets.randbits(63))
    except BeladyError as error:
        log.warning("%s; this process uses an engine of its own", error)
        return None


def _connected(cluster: Cluster) -> Node | None:
    """Starts an engine and connects all ranks with it; None if a rank cannot."""
    offer = _offer() if cluster.rank == 0 else None
    offers = _told(cluster, "the engine of the node", offer)
    found: Node | None = None
    error = _wish() or offers[0].get("error")
    if error is None:
        try:
            found = Node(_native.NodeConnection(offers[0]["socket"]), offers[0]["run"], cluster)
        except BeladyError as problem:
            error = str(problem)
    errors = _told(cluster, "the connections with the engine of the node", error)
    problem = next((error for error in errors if error is not None), None)
    if problem is None:
        return found
    if problem != _OFF and cluster.rank == 0:
        log.warning("%s; each process of this job uses an engine of its own", problem)
    return None


_OFF = "off"


def _wish() -> str | None:
    return _OFF if os.environ.get(_VARIABLE, "").lower() in ("off", "0", "no") else None


def _offer() -> dict[str, Any]:
    """Starts an engine, and returns how to reach it, or why it cannot be started."""
    if _wish() is not None:
        return {"error": _OFF}
    run = secrets.randbits(63)
    try:
        socket = _native.shared_node() or process.start(f"{run:016x}")
        return {"socket": socket, "run": run}
    except (BeladyError, OSError) as error:
        return {"error": str(error)}


def _told(cluster: Cluster, what: str, mine: Any) -> list[Any]:
    return [json.loads(theirs) for theirs in cluster.exchange(what, json.dumps(mine).encode())]
