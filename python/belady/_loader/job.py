"""A job with the interface of HDMLP and NoPFS, for programs that come from there.

    job = belady.Job("/data/imagenet/train", batch_size=1024, epochs=90,
                     distr_scheme="uniform", drop_last_batch=True, seed=0)
    job.setup()
    for _ in range(job.length()):
        label, sample = job.get()
    job.destroy()

`batch_size` is that of all nodes together, unlike a `DataLoader`'s. A process may have any number
of jobs."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import _native
from .._cluster.cluster import common_seed, of_loader
from .._cluster.world import find_world
from .._configuration import arguments
from .._configuration.loader_options import staging_of_rank
from .._dataset.dataset import open as open_dataset
from .._engine.engine import Engine
from .._pipeline.decode import Work
from ..errors import BeladyError


class Job:
    """One run over a dataset.

    - `dataset_path`, `epochs`, `drop_last_batch`, `distr_scheme`: as they say.
    - `transforms`: functions, called one after another with a sample. With them `get` returns a
      whole batch.
    - `seed`: of the shuffle. None draws one, at rank 0 for all.
    - `config_path`: a system file, which describes the machine. `lib_path` is accepted and ignored.
    - `cache`, `staging`, `peers`, `key`, `rank`, `world_size`: as for a `DataLoader`.

    >>> job = belady.Job(photos, batch_size=16, epochs=2, distr_scheme="uniform",
    ...                  drop_last_batch=False, seed=0, cache="ram:1MiB")
    >>> job.setup()
    >>> label, sample = job.get()
    >>> len(sample) > 0, job.length(), job.get_no_nodes()
    (True, 60, 1)
    >>> job.destroy()
    """

    def __init__(
        self,
        dataset_path: str | os.PathLike[str],
        batch_size: int,
        epochs: int,
        distr_scheme: str = "uniform",
        drop_last_batch: bool = False,
        transforms: Sequence[Callable[[Any], Any]] | None = None,
        seed: int | None = None,
        config_path: str | None = None,
        lib_path: str | None = None,
        *,
        cache: Any = None,
        staging: int | str | None = None,
        peers: Any = "auto",
        key: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        **unknown: Any,
    ) -> None:
        arguments.no_unknown(unknown, "Job", Job.__init__.__annotations__)
        self._world = find_world(rank, world_size)
        self.batch_size = arguments.count(batch_size, "batch_size", least=1)
        if self.batch_size % self._world.size:
            raise ValueError(
                f"batch_size is that of all nodes together, and {self.batch_size} cannot be "
                f"divided by {self._world.size} nodes; make it a multiple"
            )
        self.epochs = arguments.count(epochs, "epochs", least=1)
        self.distr_scheme = arguments.choice(distr_scheme, "distr_scheme", _native.SCHEMES)
        self.drop_last_batch = arguments.flag(drop_last_batch, "drop_last_batch")
        self._transforms = _functions(transforms)
        self._cluster = of_loader(peers, key, self._world)
        self.seed = (
            common_seed(self._cluster, self._world, secrets.randbits(63))
            if seed is None
            else arguments.count(seed, "seed", most=2**64 - 1)
        )
        here = self._world if self._cluster is None else self._cluster.world
        self._staging = staging_of_rank(staging, here.local_size)
        self._staging_grows = staging is None
        self._config_path = (
            None if config_path is None else arguments.path(config_path, "config_path")
        )
        self._cache = cache
        if cache is not None:
            arguments.tiers(cache)  # raises here for a mistake, and not in `setup`
        self.data = open_dataset(dataset_path)
        self.data.list_together(self._cluster)
        self._agree()
        #: The staging buffer, read-only; None before `setup` and after `destroy`.
        self.buffer_p: memoryview | None = None
        self._loader: _native.Loader | None = None
        self._samples: Iterator[tuple[int | None, memoryview]] = iter(())

    def _agree(self) -> None:
        if self._cluster is None:
            return
        self._cluster.agree(
            "a job",
            {
                "dataset": self.data.fingerprint,
                "order": self.distr_scheme,
                "seed": self.seed,
                "batch_size": self.batch_size,
                "drop_last_batch": self.drop_last_batch,
                "epochs": self.epochs,
            },
        )

    def setup(self) -> None:
        """Starts prefetching."""
        if self._loader is not None:
            raise BeladyError("this job is set up; call destroy() before another setup()")
        world = self._world
        engine = Engine(
            self._cache,
            system=self._config_path,
            peers=self._cluster,
            rank=world.rank,
            world_size=world.size,
        )
        orders = _native.Orders.distributed(
            samples=len(self.data),
            batch=self.batch_size // world.size,
            scheme=self.distr_scheme,
            seed=self.seed,
            rank=world.rank,
            ranks=world.size,
            drop_last=self.drop_last_batch,
        )
        self._loader = engine.start(
            self.data,
            orders,
            epochs=self.epochs,
            staging=self._staging,
            staging_grows=self._staging_grows,
            shared=True,
            peers=self._cluster is not None,
        )
        self._orders = orders
        self.buffer_p = _mapped(self._loader)

    def get(self) -> Any:
        """Returns the next sample as `(label, bytes)`; with `transforms` the next collated batch.

        Raises StopIteration after the run's last one.
        """
        if self._loader is None:
            raise BeladyError("this job is not set up; call setup() first")
        if self._transforms is not None:
            return self._transformed(self._batch())
        while True:
            for found in self._samples:
                return found
            batch = self._batch()
            self._samples = iter([(sample.label, memoryview(sample)) for sample in batch.samples()])

    def _batch(self) -> _native.Batch:
        assert self._loader is not None
        batch = self._loader.next()
        if batch is None:
            raise StopIteration
        return batch

    def _transformed(self, batch: _native.Batch) -> Any:
        outcome = Work(self._apply, None, "raise").whole(batch)
        if outcome.failures:
            from .._pipeline.decode import named

            raise named(outcome.failures[0], batch) from outcome.failures[0].error
        return tuple(outcome.value)

    def _apply(self, sample: Any, label: int | None) -> Any:
        for transform in self._transforms or ():
            sample = transform(sample)
        return sample, label

    def destroy(self) -> None:
        """Ends the job and releases its memory; samples that you hold stay valid."""
        if self._loader is not None:
            self._loader.close()
        self._loader = None
        self.buffer_p = None
        self._samples = iter(())

    def length(self) -> int:
        """Returns the samples of an epoch on this node."""
        drawn = self._native_orders().epoch(0)
        return len(drawn[0]) if drawn is not None else 0

    def _native_orders(self) -> _native.Orders:
        if self._loader is None:
            raise BeladyError("this job is not set up; call setup() first")
        return self._orders

    def get_node_id(self) -> int:
        """Returns this node's rank."""
        return self._world.rank

    def get_no_nodes(self) -> int:
        """Returns the number of nodes."""
        return self._world.size

    def __enter__(self) -> Job:
        self.setup()
        return self

    def __exit__(self, *error: object) -> None:
        self.destroy()


def _functions(given: object) -> list[Callable[[Any], Any]] | None:
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not all(callable(item) for item in given):
        raise TypeError(f"transforms has to be a list of functions of a sample, not {given!r}")
    return list(given)


def _mapped(loader: _native.Loader) -> memoryview | None:
    memory = loader.shared_memory()
    if memory is None:
        return None
    descriptor, length = memory
    return memoryview(mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ))
