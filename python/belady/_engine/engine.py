"""The engine: threads and caches that loaders share.

A `DataLoader` makes its own engine. Make one yourself to share it, for example between training and
validation:

    engine = belady.Engine(cache=["ram:40GiB"])
    train = belady.DataLoader(data, engine=engine, cache_share=0.9, ...)
    validate = belady.DataLoader(held_out, engine=engine, ...)

Each loader takes `cache_share` of the cache space that other loaders have left.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from .. import _native
from .._cluster import cluster as cluster_
from .._cluster.cluster import Cluster
from .._cluster.world import World, find_world
from .._configuration import arguments
from .._dataset.dataset import Dataset
from .._node import node as node_
from . import disk_caches
from .stats import Stats

if TYPE_CHECKING:
    from .._configuration.loader_options import LoaderArguments

log = logging.getLogger("belady")

_DEFAULT_RETRIES = 5
_DEFAULT_READ_TIMEOUT = 30.0
#: Bytes that a sample in RAM may take beyond its size.
_ROUNDING = 512
_LARGEST_PORT = 65535


class Engine:
    """Threads and caches.

    - `cache`: tiers, fastest first: "ram:40GiB", "/local/nvme:500GiB". Quotas are for the whole
      node: its processes share one engine, or divide the quotas where each has its own. None is a
      quarter of the free memory; an empty list is no cache.
    - `threads`: threads that load; "auto" is four a core, from 8 to 32.
    - `retries`, `read_timeout`: a failed read is retried so many times; a read without an answer
      after so many seconds counts as failed.
    - `system`: a file that describes the machine; None takes the one that BELADY_SYSTEM names.
    - `metrics`: an address such as "127.0.0.1:9464" for Prometheus; the k-th process of the job on
      a node takes the k-th port from there on. The token comes from BELADY_METRICS_TOKEN.
    - `peers`, `key`: the other processes of the job, with which the cache is shared: see
      `belady.cluster`. None caches alone.
    - `rank`, `world_size`: by default those of torch.distributed or the launcher.

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
        arguments.no_unknown(unknown, "Engine", Engine.__init__.__annotations__)
        world = find_world(rank, world_size)
        #: The processes of the job, if they have met.
        self.cluster = (
            peers if isinstance(peers, Cluster) else cluster_.of_loader(peers, key, world)
        )
        if self.cluster is not None:
            world = self.cluster.world
        self.pid = os.getpid()
        #: The engine of the node, which serves all ranks there; None for one of this process.
        self.node: _native.NodeEngine | None = None
        self._jobs = 0
        self._node = node_.of_job(self.cluster, world) if peers is not None else None
        options: dict[str, Any] = {
            "threads": arguments.threads(threads, "threads"),
            "system": _system_file(system),
            "attempts": arguments.count(retries, "retries", most=10**6) + 1,
            "timeout": arguments.seconds(read_timeout, "read_timeout", zero=False),
        }
        own = _tiers(cache, world.local_size)
        #: Cache tiers, fastest first: of the whole node if the engine is.
        self.tiers = own if self._node is None else _tiers(cache, 1)
        if self.cluster is not None or world.size == 1:
            used = world if self._node is None else World()
            disk_caches.remove_unused(self.tiers, used)
        if self.cluster is not None:
            own = disk_caches.of_rank(own, world)
            if self._node is None:
                self.tiers = own
        self._node_options = {"tiers": self.tiers, **options}
        if self._node is not None:
            self.node = self._node.engine(**self._node_options)
        #: The engine of this process: if the node has one, only after that has ended.
        self.native = _native.Engine(
            tiers=own,
            peers=None if self.cluster is None else self.cluster.native,
            on_demand=self._node is not None,
            **options,
        )
        #: The address of the metrics, if they are served.
        self.metrics_address = (
            None if metrics is None else serve(self.native, metrics, world, self.node)
        )

    def start(
        self, data: Dataset, orders: _native.Orders, *, peers: bool, **options: Any
    ) -> _native.Loader:
        """Starts a job: on the node's engine, if the ranks know each other's orders.

        With `peers`, all ranks make the same call."""
        shared = self.node if peers or self.cluster is None else None
        return self.native.start(
            data.native,
            orders,
            # A rank alone has lost the others' engine.
            peers=peers and (shared is not None or self._node is None),
            node=shared,
            job=self._next_job(),
            **options,
        )

    def _next_job(self) -> int:
        """Returns the number of the next job: the same on all ranks."""
        self._jobs += 1
        return self._jobs if self.cluster is None else self.cluster.steps

    def leave_node(self, error: BaseException) -> None:
        """Continues with an engine of this process after the node's has ended."""
        log.warning("%s; this process continues with an engine of its own", error)
        self.node = None
        if self._node is not None:
            self._node.is_lost = True

    def renew_node(self) -> None:
        """Starts engines of nodes again, if one of the job's has ended. Collective."""
        if self._node is None or self.cluster is None:
            return
        found = node_.of_job(self.cluster, self.cluster.world)
        if found is not self._node:
            self._node = found
            self.node = None if found is None else found.engine(**self._node_options)

    def view(self, data: Dataset) -> Dataset:
        """Returns the dataset with single samples read through this engine's caches.

        >>> engine = belady.Engine(cache="ram:1MiB")
        >>> data = engine.view(belady.open(photos))
        >>> sample, label = data[0]
        """
        if not isinstance(data, Dataset):
            raise TypeError(f"view takes a dataset of belady.open, not {type(data).__name__}")
        view = Dataset(data.native, data._recipe)
        view.serve_from(self, keep=True)
        return view

    def close(self) -> None:
        """Frees the memory that is kept for the next loader of the same dataset.

        Loaders of this engine have their own `close`.
        """
        self.native.free_memory()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stats(self) -> Stats:
        """Returns the figures of all loaders of this engine together."""
        return Stats((self.node or self.native).stats())

    def metrics_text(self) -> str:
        """Returns the same as Prometheus text."""
        return (self.node or self.native).metrics_text()

    @property
    def threads(self) -> int:
        """Threads that load."""
        return self.native.threads

    def __repr__(self) -> str:
        tiers = [
            f"{'ram' if place is None else place}:{_native.format_size(quota)}"
            for place, quota in self.tiers
        ]
        return f"<belady.Engine {', '.join(tiers) or 'without a cache'}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "an Engine has threads and cannot be pickled; pass the dataset (engine.view(data)), "
            "which uses its caches on disk"
        )


def _tiers(cache: object, local_ranks: int) -> list[arguments.Tier]:
    """Returns this process's part of the tiers, if it shares the node with others."""
    if cache is None:
        return arguments.default_tiers(sys.maxsize, local_ranks)
    return arguments.tiers(cache, local_ranks=local_ranks)


def _system_file(system: object) -> str | None:
    if system is None:
        return os.environ.get("BELADY_SYSTEM") or None
    return arguments.path(system, "system")


def serve(
    native: _native.Engine,
    address: object,
    world: World,
    node: _native.NodeEngine | None = None,
) -> str | None:
    """Serves metrics at host and port, the k-th rank of a node at the k-th port from there.

    If there are other ranks, which would wait for this one, a port that is in use is logged and
    does not stop the job."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not port.isdecimal() or int(port) > _LARGEST_PORT:
        raise ValueError(f'metrics has to be an address such as "127.0.0.1:9464", not {address!r}')
    own = 0 if int(port) == 0 else int(port) + world.local_rank
    try:
        if own > _LARGEST_PORT:
            raise OSError(
                f"metrics={address!r} leaves no port for process {world.local_rank} of this node; "
                "choose a lower one"
            )
        return native.serve_metrics(f"{host}:{own}", node)
    except OSError as error:
        if world.size == 1:
            raise
        log.warning("%s; rank %d continues without metrics", error, world.rank)
        return None


def cluster_for(given: LoaderArguments, world: World) -> Cluster | None:
    """Returns the cluster of a loader: that of its engine, or the one its arguments name."""
    if not isinstance(given.engine, Engine):
        return cluster_.of_loader(given.peers, given.key, world)
    if given.key is not None or given.peers not in ("auto", *cluster_.ALONE):
        raise ValueError(
            "peers and key belong to the engine; give them to belady.Engine(peers=...)"
        )
    shared = given.engine.cluster if given.peers == "auto" else None
    return shared if shared is not None and shared.includes(world) else None


def for_loader(
    given: LoaderArguments, data: Dataset, world: World, cluster: Cluster | None
) -> Engine:
    """Returns the engine that a loader was given, or makes one from the loader's arguments."""
    if given.engine is not None:
        if not isinstance(given.engine, Engine):
            raise TypeError(f"engine has to be a belady.Engine, not {type(given.engine).__name__}")
        for name in ("cache", "retries", "read_timeout", "metrics"):
            if getattr(given, name) is not None:
                raise ValueError(
                    f"{name} belongs to the engine; give it to belady.Engine({name}=...)"
                )
        return given.engine
    cache = given.cache
    if cache is None:
        # The whole dataset, with the rounding of each sample.
        whole = data.total_bytes + _ROUNDING * len(data) + _ROUNDING**2
        quotas = arguments.default_tiers(whole, world.local_size)
        # `Engine` divides by the number of ranks, which `default_tiers` has done.
        cache = [("ram", quota * world.local_size) for _, quota in quotas]
    return Engine(
        cache,
        retries=_DEFAULT_RETRIES if given.retries is None else given.retries,
        read_timeout=_DEFAULT_READ_TIMEOUT if given.read_timeout is None else given.read_timeout,
        metrics=given.metrics,
        # One process has no cluster, but may use the engine that outlives jobs.
        peers="auto" if world.size == 1 and given.peers not in cluster_.ALONE else cluster,
        rank=given.rank,
        world_size=given.world_size,
    )
