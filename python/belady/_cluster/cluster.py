"""The processes of a job, and what they agree on.

The caches of all processes of a job are one cache. A `DataLoader` finds the other processes by
itself where it can (`discovery.py`); `belady.cluster()` does the same earlier, or with more
options. A process meets the others once: all its loaders and engines share one `Cluster`. Its
worker processes and other forked children have none.

Ranks take collective steps in the same order: make a loader, open a dataset with `peers=`. Each
step is one exchange with a number, so ranks that take different steps get an error instead of a
hang."""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from .. import _native
from .._configuration import arguments
from ..errors import BeladyError
from .discovery import find, named
from .world import World, find_world, in_worker

__all__ = ["Cluster", "cluster", "of_loader"]

log = logging.getLogger("belady")

#: Values of `peers` for no peers.
ALONE: tuple[object, ...] = (None, False)
#: Seconds that ranks wait for each other by default: as long as torch's process groups do. Rank 0
#: may list a large dataset meanwhile.
TIMEOUT = 1800.0


class Cluster:
    """The processes of a job after they have met, made by `belady.cluster()`.

    `rank` and `size` are this process's number and the number of processes, `place` is where they
    met.
    """

    def __init__(self, native: _native.Cluster, place: str) -> None:
        self.native = native
        self.pid = os.getpid()
        near = native.local_ranks()
        #: The first rank on this machine.
        self.first_here = near[0]
        #: This process among those of the job and of this machine.
        self.world = World(native.rank, native.size, near.index(native.rank), len(near))
        #: The place where they met, for messages.
        self.place = place
        self._exchanges = 0

    @property
    def rank(self) -> int:
        """This process's number."""
        return self.world.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.world.size

    def exchange(self, what: str, mine: bytes) -> list[bytes]:
        """Returns what all ranks gave, by rank: at most 1 MiB each.

        Collective: all ranks call it, in the same order.
        """
        return self.native.exchange(self._name(what), mine)

    @property
    def steps(self) -> int:
        """The collective steps so far: the same on all ranks between two of them."""
        return self._exchanges

    def _name(self, what: str) -> str:
        self._exchanges += 1
        return f"the making of {what}, number {self._exchanges}"

    def agree(self, what: str, facts: dict[str, Any]) -> None:
        """Raises if the facts of ranks differ; the message names the fact and the ranks."""
        shown = {name: _shown(value) for name, value in facts.items()}
        self.native.agree(self._name(what), list(shown.items()))

    def common_start(self, position: tuple[int, int], cut: int | None) -> int | None:
        """Returns the batches after which ranks leave their epochs, if all leave after as many.

        Raises if ranks begin at different positions.
        """
        mine = json.dumps([*position, cut]).encode()
        given = [json.loads(theirs) for theirs in self.exchange("a loader's start", mine)]
        positions = [(epoch, batch) for epoch, batch, _ in given]
        if len(set(positions)) > 1:
            raise BeladyError(_different_starts(positions))
        return cut if len({theirs for _, _, theirs in given}) == 1 else None

    def common(self, what: str, drawn: int) -> int:
        """Returns what rank 0 has drawn."""
        return int(self.exchange(what, b"%d" % drawn)[0])

    def includes(self, world: World) -> bool:
        """Whether the cluster has a rank with this place in the world."""
        return (world.rank, world.size) == (self.rank, self.size)

    def __repr__(self) -> str:
        return f"<belady.Cluster: rank {self.rank} of {self.size}, met at {self.place}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Cluster has connections and cannot be pickled; it is one process's own")


_lock = threading.Lock()
_joined: Cluster | None = None
#: Whether the missing rendezvous was logged.
_warned = False


def cluster(
    peers: object = "auto",
    *,
    key: str | os.PathLike[str] | None = None,
    bind: str | None = None,
    tls: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
    rank: int | None = None,
    world_size: int | None = None,
    **unknown: Any,
) -> Cluster | None:
    """Meets the other processes of the job; returns None if there are none.

    - `peers`: "auto" finds the rendezvous through the launcher or torch.distributed. Else the
      place, the same on every rank: "host:port" of rank 0, a list of hosts by rank, a directory
      that all share, or "mpi". None for no peers.
    - `key`: the job's key as 64 hexadecimal digits, or the path of a file with it that only you can
      read; by default BELADY_KEY. Not needed where only the job reaches the rendezvous (torch, MPI,
      jax, a directory of yours).
    - `bind`: address or network interface by which others reach this process; by default
      BELADY_BIND, else the interface that reaches the rendezvous.
    - `tls`: paths of certificate, private key and the authority's certificate (PEM), and the name
      that all certificates bear if they bear no addresses.
    - `timeout`: seconds that ranks wait for each other.
    - `rank`, `world_size`: by default those of torch.distributed or the launcher.

    All ranks call it, or make a `DataLoader`, which does. A second call returns the same cluster.

    >>> belady.cluster() is None  # one process
    True
    """
    arguments.no_unknown(
        unknown, "cluster", ("peers", "key", "bind", "tls", "timeout", "rank", "world_size")
    )
    options = {
        "key": None if key is None else arguments.path(key, "key"),
        "bind": bind or None,
        "tls": None if tls is None else [arguments.path(path, "tls") for path in tls],
        "timeout": arguments.seconds(timeout, "timeout", zero=False),
    }
    return _cluster(peers, find_world(rank, world_size), options)


def _cluster(peers: object, world: World, options: dict[str, Any]) -> Cluster | None:
    global _joined
    wanted = named(peers)
    if wanted is None or world.size == 1 or in_worker():
        return None
    with _lock:
        if _joined is not None:
            if _joined.pid != os.getpid():
                return None  # a forked child
            _refuse_another(_joined, wanted)
            return _joined
        place = find(wanted, world, options["key"])
        if place is None:
            _warn_alone(world)
            return None
        _joined = Cluster(place.join(**options), place.name)
        log.info("belady: rank %d of %d, met at %s", _joined.rank, _joined.size, place.name)
        return _joined


def _refuse_another(joined: Cluster, wanted: str | list[str]) -> None:
    shown = wanted if isinstance(wanted, str) else ", ".join(wanted)
    if shown not in ("auto", joined.place):
        raise ValueError(
            f"this process has already met its peers at {joined.place}, and a process meets them "
            f"once; leave peers={wanted!r} out"
        )


def _warn_alone(world: World) -> None:
    global _warned
    if not _warned:
        _warned = True
        log.warning(
            "belady found no place where the %d processes of this job can meet, so each caches for "
            'itself; initialise torch.distributed before, pass peers="HOST:PORT" of rank 0 and '
            "key=..., or peers=None if this is intended (docs/distributed.md)",
            world.size,
        )


def of_loader(peers: Any, key: Any, world: World) -> Cluster | None:
    """Returns the cluster of a loader, an engine or a job with these arguments."""
    if peers in ALONE and key is not None:
        raise ValueError("key is for peers; leave it out where peers is None")
    options = {
        "key": None if key is None else arguments.path(key, "key"),
        "bind": None,
        "tls": None,
        "timeout": TIMEOUT,
    }
    found = _cluster(peers, world, options)
    return found if found is not None and found.includes(world) else None


def common_seed(cluster: Cluster | None, world: World, drawn: int) -> int:
    """Returns the seed that rank 0 has drawn."""
    if world.size == 1:
        return drawn
    if cluster is None:
        raise ValueError(
            f"{world.size} processes have to agree on a seed and have no rendezvous; pass seed, or "
            "see docs/distributed.md for how they meet"
        )
    return cluster.common("a seed", drawn)


@atexit.register
def _leave() -> None:
    """Leaves the cluster after all pipelines ended: with MPI, ranks leave together."""
    if _joined is not None and _joined.pid == os.getpid():
        _joined.native.close()


def _different_starts(positions: list[tuple[int, int]]) -> str:
    other = next(rank for rank, position in enumerate(positions) if position != positions[0])
    shown = [
        f"rank {rank} with batch {positions[rank][1]} of epoch {positions[rank][0]}"
        for rank in (0, other)
    ]
    return (
        f"the ranks of a loader begin at different positions, {' and '.join(shown)}: all ranks "
        "have to leave an epoch early, set an epoch and load a state together; a loader of one "
        "rank alone takes peers=None"
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
