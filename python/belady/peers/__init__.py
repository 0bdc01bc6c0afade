"""The other processes of the job: where they are met, and what is agreed with them.

The caches of all processes of a job are one cache. A `DataLoader` finds the others by itself where it
can (`find.py`); `belady.cluster()` does the same earlier, or with more to say. A process meets the
others once: all its loaders and engines share one `Cluster`. Its worker processes, and whatever else it
forks, have none.

What ranks do together, they do in the same order: make a loader, open a dataset with `peers=`. Each
such thing is one exchange, told apart by its number, so ranks that do not do the same are told so
instead of waiting for ever.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from .. import _native, arguments
from ..distributed import World, in_worker, world as found_world
from ..errors import BeladyError
from ..state import Position
from .find import find, named

__all__ = ["Cluster", "cluster", "of_loader"]

log = logging.getLogger("belady")

#: What `peers` may be for "alone".
ALONE: tuple[object, ...] = (None, False)
#: Seconds that ranks wait for each other at most, if nobody says otherwise: as long as torch's process
#: groups do. Rank 0 may list a large dataset meanwhile.
TIMEOUT = 1800.0


class Cluster:
    """The processes of a job, once they have met. Made by `belady.cluster()`."""

    def __init__(self, native: _native.Cluster, place: str) -> None:
        self.native = native
        self.pid = os.getpid()
        near = native.near()
        #: This process among those of the job, and of this machine.
        self.world = World(native.rank, native.size, near.index(native.rank), len(near))
        #: Where they met, for people.
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
        """What all ranks gave, by rank: at most 1 MiB each. All of them call this, in the same order."""
        return self.native.exchange(self._name(what), mine)

    def _name(self, what: str) -> str:
        self._exchanges += 1
        return f"the making of {what}, number {self._exchanges}"

    def agree(self, what: str, facts: dict[str, Any]) -> None:
        """Raises if a rank has other facts; the sentence says which, and where."""
        shown = {name: _shown(value) for name, value in facts.items()}
        self.native.agree(self._name(what), list(shown.items()))

    def common_start(self, position: Position, cut: int | None) -> int | None:
        """Batches after which the ranks of a loader leave their epochs, if all leave them alike.

        Raises if ranks are to begin at different positions.
        """
        mine = json.dumps([*position, cut]).encode()
        given = [json.loads(theirs) for theirs in self.exchange("a loader's start", mine)]
        places = [(epoch, batch) for epoch, batch, _ in given]
        if len(set(places)) > 1:
            raise BeladyError(_apart(places))
        return cut if len({theirs for _, _, theirs in given}) == 1 else None

    def common(self, what: str, drawn: int) -> int:
        """What rank 0 has drawn."""
        return int(self.exchange(what, b"%d" % drawn)[0])

    def includes(self, world: World) -> bool:
        """Whether a loader of this place in this world is one of its loaders."""
        return (world.rank, world.size) == (self.rank, self.size)

    def __repr__(self) -> str:
        return f"<belady.Cluster: rank {self.rank} of {self.size}, met at {self.place}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Cluster has connections and cannot be pickled; it is one process's own")


_lock = threading.Lock()
_joined: Cluster | None = None
#: Whether it was said that there are no peers.
_told = False


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
    """Meets the other processes of the job; None if there are none.

    - `peers`: "auto" finds them by what started this process. Else a meeting place, the same on
      every rank: "host:port" of rank 0, a list of hosts by rank, a directory that all share, or
      "mpi". None is nobody.
    - `key`: the job's key as text of 64 hexadecimal digits, or the path of a file with it that only
      you can read; without it BELADY_KEY is taken. Not needed where the meeting place is itself only
      for the job (torch, MPI, jax, a directory of yours).
    - `bind`: address or network interface that others reach this process by; without it
      BELADY_BIND is taken, else the one by which the meeting place is reached.
    - `tls`: paths of certificate, private key and the authority's certificate (PEM), and the name
      that all certificates bear if they do not bear addresses.
    - `timeout`: seconds that ranks wait for each other.
    - `rank`, `world_size`: if they are not to be asked of torch.distributed or the environment.

    All ranks call it, or make a `DataLoader`, which does. The second call gives the same cluster.

    >>> belady.cluster() is None  # one process
    True
    """
    arguments.no_unknown(
        unknown, "cluster", ("peers", "key", "bind", "tls", "timeout", "rank", "world_size")
    )
    options = {
        "key": None if key is None else arguments.path(key, "key"),
        "bind": bind or os.environ.get("BELADY_BIND") or None,
        "tls": None if tls is None else [arguments.path(path, "tls") for path in tls],
        "timeout": arguments.seconds(timeout, "timeout", zero=False),
    }
    return _cluster(peers, found_world(rank, world_size), options)


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
            _tell_alone(world)
            return None
        _joined = Cluster(place.join(**options), place.name)
        log.info("belady: rank %d of %d, met at %s", _joined.rank, _joined.size, place.name)
        return _joined


def _refuse_another(joined: Cluster, wanted: str | list[str]) -> None:
    shown = wanted if isinstance(wanted, str) else ", ".join(wanted)
    if shown not in ("auto", joined.place):
        raise ValueError(
            f"this process has met its peers at {joined.place} already, and a process meets them "
            f"once; leave peers={wanted!r} out"
        )


def _tell_alone(world: World) -> None:
    global _told
    if not _told:
        _told = True
        log.warning(
            "belady found no place where the %d processes of this job can meet, so each caches for "
            'itself; initialise torch.distributed before, pass peers="HOST:PORT" of rank 0 and '
            "key=..., or peers=None if that is meant (docs/distributed.md)",
            world.size,
        )


def of_loader(given: dict[str, Any], world: World) -> Cluster | None:
    """The cluster of a loader, of an engine or of a job with these arguments."""
    if given["peers"] in ALONE and given["key"] is not None:
        raise ValueError("key is for peers; leave it out where peers is None")
    options = {
        "key": None if given["key"] is None else arguments.path(given["key"], "key"),
        "bind": os.environ.get("BELADY_BIND") or None,
        "tls": None,
        "timeout": TIMEOUT,
    }
    found = _cluster(given["peers"], world, options)
    return found if found is not None and found.includes(world) else None


def common_seed(cluster: Cluster | None, world: World, drawn: int) -> int:
    """A seed that was drawn by rank 0 of all."""
    if world.size == 1:
        return drawn
    if cluster is None:
        raise ValueError(
            f"{world.size} processes have to agree on a seed and have not met; pass seed, or see "
            "docs/distributed.md for how they meet"
        )
    return cluster.common("a seed", drawn)


@atexit.register
def _leave() -> None:
    """Before the interpreter ends, and after all pipelines have: peers by MPI leave together."""
    if _joined is not None and _joined.pid == os.getpid():
        _joined.native.close()


def _apart(places: list[tuple[int, int]]) -> str:
    """Ranks begin at different positions."""
    first, other = places[0], next(place for place in places if place != places[0])
    ranks = [0, places.index(other)]
    shown = [f"rank {rank} with batch {places[rank][1]} of epoch {places[rank][0]}" for rank in ranks]
    return (
        f"the ranks of a loader begin at different places, {' and '.join(shown)}: every rank has to "
        "leave its epochs early, set an epoch and load a state together with all others; a loader "
        "of its own takes peers=None"
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
