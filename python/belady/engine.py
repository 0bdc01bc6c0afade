"""An engine: threads and caches that loaders share.

A `DataLoader` makes one of its own. Make one yourself to share it, for example between training
and validation:

    engine = belady.Engine(cache=["ram:40GiB"])
    train = belady.DataLoader(data, engine=engine, cache_share=0.9, ...)
    validate = belady.DataLoader(held_out, engine=engine, ...)

Each loader takes `cache_share` of what others have left of the caches.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from . import _native, arguments, caches, distributed, peers as peers_
from .dataset import Dataset
from .peers import Cluster
from .stats import Stats

log = logging.getLogger("belady")

_DEFAULT_RETRIES = 5
_DEFAULT_READ_TIMEOUT = 30.0
#: More threads than a process can have on most machines.
_MOST_THREADS = 10_000
#: Bytes that a sample in RAM may take beyond its own.
_ROUNDING = 512
_LARGEST_PORT = 65535


class Engine:
    """Threads and caches.

    - `cache`: tiers, fastest first: "ram:40GiB", "/local/nvme:500GiB". Quotas are for the whole
      node and are divided among the processes of the job that run on it. None is a quarter of
      the memory that is free; an empty list is no cache.
    - `threads`: threads that load; "auto" is four a core, from 8 to 32.
    - `retries`, `read_timeout`: a read that fails is tried so many times more, and one without
      an answer after so many seconds counts as failed.
    - `system`: a file that says what the machine can do; None takes the one that
      BELADY_SYSTEM names, if it is set.
    - `metrics`: an address such as "127.0.0.1:9464" for Prometheus; the k-th process of the job on a
      node takes the k-th port from there on. The token is taken from BELADY_METRICS_TOKEN.
    - `peers`, `key`: the other processes of the job, whose caches are one cache with this one: see
      `belady.cluster`. None caches alone.
    - `rank`, `world_size`: this process's place in the job, if it is not to be asked of
      torch.distributed or the environment.

    >>> engine = belady.Engine(cache="ram:1MiB", threads=2)
    >>> engine.tiers
    [(None, 1048576)]
    """

    def __init__(
        self,
        cache: object = None,
        *,
        threads: int | str | None = "auto",
        retries: int = _DEFAULT_RETRIES,
        read_timeout: float = _DEFAULT_READ_TIMEOUT,
        system: str | os.PathLike[str] | None = None,
        metrics: str | None = None,
        peers: object = "auto",
        key: object = None,
        rank: int | None = None,
        world_size: int | None = None,
        **unknown: Any,
    ) -> None:
        arguments.no_unknown(unknown, "Engine", _names())
        world = distributed.world(rank, world_size)
        #: The processes of the job, as far as they have met.
        self.cluster = (
            peers
            if isinstance(peers, Cluster)
            else peers_.of_loader({"peers": peers, "key": key}, world)
        )
        if self.cluster is not None:
            world = self.cluster.world
        local_ranks = world.local_size
        self.pid = os.getpid()
        if cache is None:
            self.tiers = arguments.default_tiers(sys.maxsize, local_ranks)
        else:
            self.tiers = arguments.tiers(cache, local_ranks=local_ranks)
        if self.cluster is not None or world.size == 1:
            caches.clear_left_behind(self.tiers, world)
        if self.cluster is not None:
            self.tiers = caches.of_rank(self.tiers, world)
        self.native = _native.Engine(
            tiers=self.tiers,
            threads=auto(threads, "threads"),
            system=_system_file(system),
            attempts=arguments.count(retries, "retries", most=10**6) + 1,
            timeout=arguments.seconds(read_timeout, "read_timeout", zero=False),
            peers=None if self.cluster is None else self.cluster.native,
        )
        #: Where Prometheus finds the metrics, if it was asked for.
        self.metrics_address = (
            None if metrics is None else serve(self.native, metrics, world)
        )

    def view(self, data: Dataset) -> Dataset:
        """The dataset, its single samples read through this engine's caches."""
        if not isinstance(data, Dataset):
            raise TypeError(f"view takes a dataset of belady.open, not {type(data).__name__}")
        view = Dataset(data.native, data._recipe)
        view.serve_from(self, keep=True)
        return view

    def let_go(self) -> None:
        """Gives back the memory that is kept for the next loader of the same dataset."""
        self.native.let_go()

    def close(self) -> None:
        """As `let_go`. Loaders of this engine end by their own `close`."""
        self.let_go()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stats(self) -> Stats:
        """What all loaders of this engine have done together."""
        return Stats(self.native.stats())

    def metrics_text(self) -> str:
        """The same for Prometheus."""
        return self.native.metrics_text()

    @property
    def threads(self) -> int:
        """Threads that load."""
        return self.native.threads

    def __repr__(self) -> str:
        tiers = [
            f"{'ram' if place is None else place}:{arguments.shown_size(quota)}"
            for place, quota in self.tiers
        ]
        return f"<belady.Engine {', '.join(tiers) or 'without a cache'}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "an Engine has threads and cannot be pickled; pass the dataset (engine.view(data)), "
            "which finds the caches on disk again"
        )


def auto(value: object, name: str) -> int | None:
    """A number of threads, or None for "auto"."""
    if value is None or value == "auto":
        return None
    if isinstance(value, str):
        raise ValueError(f'{name} has to be "auto" or a number, not "{value}"')
    return arguments.count(value, name, least=1, most=_MOST_THREADS)


def _system_file(system: object) -> str | None:
    if system is None:
        return os.environ.get("BELADY_SYSTEM") or None
    return arguments.path(system, "system")


def serve(native: _native.Engine, address: object, world: distributed.World) -> str | None:
    """Offers metrics at an address, which has a host and a port: the first rank of a node there, and each
    further one a port higher. Where other ranks wait for this one, a port that cannot be had is told and
    stops nothing."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not port.isdecimal() or int(port) > _LARGEST_PORT:
        raise ValueError(f'metrics has to be an address such as "127.0.0.1:9464", not {address!r}')
    own = 0 if int(port) == 0 else int(port) + world.local_rank
    try:
        if own > _LARGEST_PORT:
            raise OSError(
                f"metrics={address!r} leaves no port for process {world.local_rank} of this node, "
                "take a lower one"
            )
        return native.serve_metrics(f"{host}:{own}")
    except OSError as error:
        if world.size == 1:
            raise
        log.warning("%s; rank %d goes on without them", error, world.rank)
        return None


def _names() -> list[str]:
    return [
        *("cache", "threads", "retries", "read_timeout", "system", "metrics"),
        *("peers", "key", "rank", "world_size"),
    ]


def cluster_for(given: dict[str, Any], world: distributed.World) -> Cluster | None:
    """The cluster of a loader: that of its engine, or as its arguments say."""
    engine: object = given["engine"]
    if not isinstance(engine, Engine):
        return peers_.of_loader(given, world)
    if given["key"] is not None or given["peers"] not in ("auto", *peers_.ALONE):
        raise ValueError("peers and key belong to the engine; give them to belady.Engine(peers=...)")
    shared = engine.cluster if given["peers"] == "auto" else None
    return shared if shared is not None and shared.includes(world) else None


def for_loader(
    given: dict[str, Any], data: Dataset, world: distributed.World, cluster: Cluster | None
) -> Engine:
    """The engine that a loader was given, or one of its own, by the loader's arguments."""
    engine: object = given["engine"]
    names = ("cache", "retries", "read_timeout", "metrics")
    if engine is not None:
        if not isinstance(engine, Engine):
            raise TypeError(f"engine has to be a belady.Engine, not {type(engine).__name__}")
        for name in names:
            if given[name] is not None:
                raise ValueError(f"{name} belongs to the engine; give it to belady.Engine({name}=...)")
        return engine
    cache = given["cache"]
    if cache is None:
        # All of the dataset, with what rounding up costs.
        whole = data.total_bytes + _ROUNDING * len(data) + _ROUNDING**2
        quotas = arguments.default_tiers(whole, world.local_size)
        # Divided by the number of ranks already, so given as for one.
        cache = [("ram", quota * world.local_size) for _, quota in quotas]
    return Engine(
        cache,
        retries=_DEFAULT_RETRIES if given["retries"] is None else given["retries"],
        read_timeout=_DEFAULT_READ_TIMEOUT
        if given["read_timeout"] is None
        else given["read_timeout"],
        metrics=given["metrics"],
        peers=cluster,
        rank=given["rank"],
        world_size=given["world_size"],
    )
