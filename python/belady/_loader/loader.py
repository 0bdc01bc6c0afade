"""The loader: torch's `DataLoader` by names and order, fed by an engine that knows the order.

One `iter()` is one epoch. `EpochReader` delivers its batches; the `DataLoader` here checks
arguments, selects the order, agrees with the other ranks, and saves and loads states.

An iterator without a `next()` has no effect. A new iterator ends the one before, within an epoch if
need be, as `break` does: the next epoch is then the next in the order, exactly as torch draws it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import fields, replace
from types import TracebackType
from typing import Any

from .._cluster.cluster import Cluster, common_seed
from .._cluster.world import find_world
from .._configuration import arguments
from .._configuration.loader_options import LoaderArguments, Options
from .._configuration.policy import Policy
from .._dataset.dataset import Dataset
from .._dataset.subset import of_torch
from .._engine.engine import Engine, cluster_for, for_loader
from .._engine.stats import Stats
from .._orders import selection
from .._orders.order import Order
from .._orders.weighted import Mixture, Weighted
from .._pipeline.labels import Labels
from . import accelerate, checkpoint, seed as seed_
from .checkpoint import RunIdentity
from .epoch_reader import EpochIterator, EpochReader
from .samplers import LoaderBatchSampler, LoaderSampler
from .seed import Seed
from .torch_attributes import TorchAttributes

log = logging.getLogger("belady")


class DataLoader(TorchAttributes):
    """Batches of a dataset, epoch after epoch, in torch's order.

    >>> data = belady.open(photos)
    >>> loader = belady.DataLoader(data, batch_size=16, shuffle=True, seed=0, cache="ram:1MiB")
    >>> for epoch in range(2):
    ...     for samples, labels in loader:
    ...         assert len(samples) == len(labels)
    >>> len(loader)
    4

    Arguments of torch mean what they mean there:

    - `batch_size` (on this rank), `shuffle`, `sampler`, `batch_sampler`, `drop_last`, `generator`:
      the order, see docs/python.md. A generator is moved as torch moves it; the engine reads ahead
      on a copy.
    - `collate_fn`: called with the list of samples of a batch.
    - `num_workers`: 0 runs `decode` in `num_threads` threads, more run it in so many processes,
      which read from shared memory. Without `decode` and `collate_fn` it has no effect.
    - `worker_init_fn`, `multiprocessing_context`, `prefetch_factor` (batches that each worker, or
      all threads together, decode ahead).
    - `pin_memory`: copies tensors to pinned memory if there is an accelerator.
    - `timeout`: seconds after which a batch that has not come is a `TimeoutError`; 0 is never.
    - `persistent_workers`: workers always live across epochs; with it the generator draws as
      torch's does then. `in_order`, `pin_memory_device`: accepted; batches always come in order.

    Arguments of belady:

    - `seed`: of the shuffle, and of what transforms draw. "torch" follows `torch.manual_seed` if
      torch is imported, and is 0 otherwise; several processes shuffle as a `DistributedSampler`
      does. None draws a seed at rank 0 for all.
    - `epochs`: how many there will be, if that is known.
    - `decode`: called with a sample's bytes (a memoryview) and its label. If it returns a tuple,
      list or dict, that is the sample; anything else goes beside the label.
    - `transform`: instead of `decode`, a chain of `belady.transforms` that native threads run, or
      fields: `{"image": ("jpg", chain), "label": ("cls", T.Int())}`. It may contain functions, and
      torchvision's transforms as for `ImageFolder`. `collate_fn` then gets a list of `(array,
      label)`. By default the dataset's own `transform`.
    - `labels`: a list by id, a mapping by path or id, or a function of the path, for labels that
      the dataset does not have.
    - `device`: of torch ("cuda", "cuda:1") or of JAX (a device or a sharding). Batches are moved
      there from pinned memory, ahead of use; pixels travel as bytes and are normalised there.
      `memory_format`: "channels_last" for images that become floats on a device of torch.
      `decode="gpu"`: the GPU also decodes JPEG files.
    - `num_threads`: threads that decode or transform; "auto" is one a core.
    - `cache`, `retries`, `read_timeout`, `metrics`: as for `belady.Engine`; or `engine`, an
      existing one. By default the cache is a quarter of the free memory, at most the dataset.
      `cache_share`: this loader's part of what other loaders have left.
    - `rank`, `world_size`: by default those of torch.distributed or the launcher. `scheme`: how
      ranks share a batch: "uniform" (every n-th sample, as torch does), "parts" (consecutive
      samples), ...; None is "parts" where Accelerate is used, whose `gather_for_metrics` expects
      it, else "uniform". `shard_sampler`: whether ranks share what a `sampler` or `batch_sampler`
      gives; None shares those of torch that know nothing of ranks.
    - `peers`, `key`: where the processes of a job meet to share one cache, and the job's key: see
      `belady.cluster`. "auto" finds them; None caches alone. Every rank makes the same loaders in
      the same order.
    - `next_epoch`: how much of the next epoch is staged before you begin it, if `epochs` is not
      given: two batches (eight with peers), or so many bytes if that is more; None is 5 % of the
      dataset, at most 32 MiB.
    - `staging`: the buffer in which this rank's batches are made; None is its part of 512 MiB for
      all ranks of the node, or what two batches need. `policy`: decides which samples are cached:
      a name, a name with options such as "lobster,tau=5ms", or a `belady.Policy`.
    - `on_error`: "raise", "skip" or "replace" samples that cannot be read or decoded;
      `max_failures`: more than so many are an error.
    - `writable`: whether you may write to the memory of samples. True copies each into the staging
      buffer. False lends samples in RAM from the cache itself, read-only and without a copy. None
      is True if torch, jax or tensorflow is imported, since their tensors ignore that memory is
      read-only, or if there is a `decode`; else False.
    - `stall_after`: a wait of so many seconds is logged, with its reason.
    - `trace`: a file that records the policy's decisions.
    """

    #: For Accelerate: `accelerator.prepare_data_loader` returns it unchanged.
    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: Dataset | Mixture | Any,
        batch_size: int | None = 1,
        shuffle: bool | str | None = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | str | None = seed_.TORCH,
        epochs: int | None = None,
        cache: Any = None,
        engine: Engine | None = None,
        peers: Any = "auto",
        key: Any = None,
        decode: Callable[..., Any] | str | None = None,
        transform: Any = None,
        labels: Any = None,
        device: Any = None,
        memory_format: Any = None,
        num_threads: int | str | None = "auto",
        rank: int | None = None,
        world_size: int | None = None,
        scheme: str | None = None,
        shard_sampler: bool | None = None,
        staging: int | str | None = None,
        next_epoch: int | str | None = None,
        policy: str | Policy = "belady",
        on_error: str = "raise",
        max_failures: int | None = None,
        retries: int | None = None,
        read_timeout: float | None = None,
        metrics: str | None = None,
        cache_share: float = 1.0,
        writable: bool | None = None,
        stall_after: float = 30.0,
        trace: str | None = None,
        **unknown: Any,
    ) -> None:
        given = LoaderArguments(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
            seed=seed,
            epochs=epochs,
            cache=cache,
            engine=engine,
            peers=peers,
            key=key,
            decode=decode,
            transform=transform,
            labels=labels,
            device=device,
            memory_format=memory_format,
            num_threads=num_threads,
            rank=rank,
            world_size=world_size,
            scheme=scheme,
            shard_sampler=shard_sampler,
            staging=staging,
            next_epoch=next_epoch,
            policy=policy,
            on_error=on_error,
            max_failures=max_failures,
            retries=retries,
            read_timeout=read_timeout,
            metrics=metrics,
            cache_share=cache_share,
            writable=writable,
            stall_after=stall_after,
            trace=trace,
        )
        names = [field.name for field in fields(given)]
        arguments.no_unknown(unknown, "DataLoader", names)
        self._data = _dataset(dataset)
        if transform is None and decode in (None, "gpu"):
            given = replace(given, transform=self._data.transform)
        self._given = given
        self._world = find_world(rank, world_size)
        self._options = Options.of(given, self._world)
        cluster = cluster_for(given, self._world)
        if cluster is not None and cluster.world != self._world:
            # The cluster knows which ranks are on this machine.
            self._world = cluster.world
            self._options = Options.of(given, self._world)
        self._data.list_together(cluster)
        if len(self._data) == 0:
            raise ValueError("the dataset has no samples; a loader needs at least one")
        self._seed, self._seed_is_drawn = self._checked_seed(cluster)
        self._selection = selection.checked(
            given,
            samples=len(self._data),
            seed=self._seed,
            world=self._world,
            mixture=self._mixture,
        )
        self._options = self._options.fitted(self._data, self._batch)
        self._owns_engine = engine is None
        order = self._selection.order()
        peers_ = self._agreed(cluster, order)
        self.engine = for_loader(given, self._data, self._world, cluster)
        self._data.serve_from(self.engine)
        self._reader = EpochReader(
            engine=self.engine,
            data=self._data,
            shown=self.dataset,
            order=order,
            selection=self._selection,
            options=self._options,
            labels=None if labels is None else Labels(labels, self._data),
            seed=self._seed,
            world=self._world,
            peers=peers_,
            lends_read_only=writable is False or self._options.native,
        )

    @property
    def _mixture(self) -> Mixture | None:
        given = self._given.dataset
        return given if isinstance(given, Mixture) else None

    def _checked_seed(self, cluster: Cluster | None) -> tuple[Seed, bool]:
        """Returns the seed, and whether the user left it open."""
        given = self._given
        seed = seed_.checked(given.seed)
        if given.seed is None:
            return Seed(common_seed(cluster, self._world, secrets.randbits(63))), True
        is_torchs = not (
            self._mixture is not None
            or isinstance(given.sampler, Weighted)
            or given.shuffle == "permutation"
        )
        if not seed.follows_torch or is_torchs:
            return seed, False
        # An order that torch does not have needs a seed before the first epoch.
        return Seed(seed.of_transforms()) if self._world.size == 1 else seed, True

    def _agreed(self, cluster: Cluster | None, order: Order) -> Cluster | None:
        """Returns the cluster if all ranks run the same loader and know each other's order.

        Raises if the loaders of ranks differ.
        """
        if cluster is None:
            return None
        run = self._identity(order)
        cluster.agree(
            "a loader",
            {
                "dataset": f"{run.fingerprint} ({len(self._data)} samples)",
                "order": run.order["kind"],
                "seed": self._selection.seed,
                **{name: run.order[name] for name in run.order if name not in ("kind", "seed")},
                "batch_size": self._batch,
                "drop_last": run.drop_last,
                "epochs": self._options.epochs,
                "policy": self._options.policy,
            },
        )
        if order.native.rank_and_size() == (cluster.rank, cluster.size):
            return cluster
        log.warning(
            "this loader's order comes from a sampler or a generator that only its own rank knows, "
            "so its cache is not shared; use shuffle=True, torch's DistributedSampler, "
            "belady.Weighted or belady.Mixture to share it"
        )
        return None

    @property
    def _batch(self) -> int | None:
        """Samples of a batch, also of torch's `BatchSampler`; None if batches differ."""
        return None if self._selection.batch_sampler is not None else self._selection.batch

    @property
    def _order(self) -> Order:
        return self._reader.cursor.order

    @property
    def sampler(self) -> Any:
        """The sampler as given, or one that shows the loader's own order."""
        given = self._given.sampler
        return LoaderSampler(self, self._selection.length) if given is None else given

    @property
    def batch_sampler(self) -> Any:
        """The batch sampler as given, or one that shows the loader's own batches."""
        shown = self._given.batch_sampler
        if shown is None:
            shown = LoaderBatchSampler(self, self.sampler)
        accelerate.watch_skips(self, shown)
        return shown

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or comes next."""
        return self._reader.cursor.epoch

    def __len__(self) -> int:
        return self._reader.cursor.length()

    def __iter__(self) -> EpochIterator:
        return EpochIterator(self._reader)

    def peek(self) -> list[list[int]]:
        """Returns the batches of the epoch that is being read, or comes next, as lists of ids.

        >>> loader = belady.DataLoader(belady.open(photos), batch_size=30)
        >>> [batch[:3] for batch in loader.peek()]
        [[0, 1, 2], [30, 31, 32]]
        """
        return self._reader.peek()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next `iter()` reads. Without it, epochs follow one another."""
        self._reader.set_epoch(arguments.count(epoch, "epoch"))

    def skip_to(self, batch: int) -> None:
        """Begins the next `iter()` with this batch, as `accelerate.skip_first_batches` does.

        >>> loader = belady.DataLoader(belady.open(photos), batch_size=20)
        >>> loader.skip_to(2)
        >>> sum(1 for batch in loader)
        1
        """
        wanted = arguments.count(batch, "batch")
        self._reader.skip_to(wanted)
        epoch = self._reader.cursor.position.epoch
        if wanted > 0 and not self._order.follows_from_number(epoch):
            log.warning(
                "%d batches of epoch %d are skipped, and torch's default generator draws its order "
                "from where it is now; if it was elsewhere when they were read, samples are "
                "repeated or left out: pass seed=, or save the loader's state_dict() and load it",
                wanted,
                epoch,
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's position for a checkpoint: small, safe for JSON, equal on every
        rank.

        It counts batches that were delivered, not those that were read ahead.

        >>> loader = belady.DataLoader(belady.open(photos), batch_size=16, shuffle=True)
        >>> first = next(iter(loader))
        >>> saved = loader.state_dict()
        >>> saved["epoch"], saved["batch"]
        (0, 1)
        >>> again = belady.DataLoader(belady.open(photos), batch_size=16, shuffle=True)
        >>> again.load_state_dict(saved)
        >>> sum(1 for batch in again)
        3
        """
        cursor = self._reader.cursor
        position = cursor.saved_position
        saved = checkpoint.pack(
            position, self._identity(self._order), self._order.state(position.epoch)
        )
        return saved | {"draws": self._seed.of_transforms(), "again": cursor.repetition}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continues from a saved state: the next `iter()` gives the rest of its epoch.

        A state that was saved after the last batch of an epoch, within the loop, leaves nothing:
        the next `iter()` is empty, and the one after it is the next epoch."""
        kind, seed = (checkpoint.order_of(saved).get(key) for key in ("kind", "seed"))
        order = self._order
        if self._seed_is_drawn and type(seed) is int and seed != self._selection.seed:
            # The user named no seed, so the run's own is used.
            self._selection, self._seed = replace(self._selection, seed=seed), Seed(seed)
            order = self._selection.order(kind)
        elif kind != order.identity["kind"]:
            order = self._selection.order(kind)
        position, details = checkpoint.unpack(saved, self._identity(order))
        self._seed = self._seed.restored(saved.get("draws"))
        order.restore(details, position.epoch)
        order.resumes = position.batch > 0
        again = saved.get("again", 0)
        self._reader.restore(order, position, again if type(again) is int else 0, self._seed)

    def _identity(self, order: Order) -> RunIdentity:
        batch = self._batch
        return RunIdentity(
            self._data.fingerprint,
            None if batch is None else batch * self._world.size,
            self.drop_last,
            order.identity,
        )

    def stats(self) -> Stats:
        """Returns what was delivered and waited for, where it came from, and the engine's figures.

        `str()` is a table. `stats()["engine"]["peers"]` has the traffic with other processes, and
        how many of them are down; `stats()["engine"]["ranks"]` what each rank of the engine waited,
        and what iterations lost to it as the slowest.

        >>> loader = belady.DataLoader(belady.open(photos), batch_size=20)
        >>> for samples, labels in loader:
        ...     pass
        >>> loader.stats()["samples"]
        60
        """
        reader = self._reader
        position = reader.cursor.position
        values: dict[str, Any] = {"epoch": self.epoch, "batch": position.batch, **reader.totals}
        values["failures"] = reader.failures
        running = reader.pipeline
        values["engine"] = self.engine.stats() if running is None else running.stats()
        values["bytes_from"] = _by_origin(values["engine"])
        return Stats(values)

    def close(self) -> None:
        """Ends threads and workers, and releases memory: the cache too, if the engine is its own.

        Iterating again starts them again.
        """
        self._reader.close()
        if self._owns_engine:
            self.engine.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DataLoader has threads and cannot be pickled; send the dataset, and make a loader "
            "in the other process"
        )

    def __repr__(self) -> str:
        return f"<belady.DataLoader of {self._data!r}>"


def _dataset(data: object) -> Dataset:
    if isinstance(data, Mixture):
        return data.dataset
    if isinstance(data, Dataset):
        return data
    chosen = of_torch(data)
    if chosen is not None:
        return chosen
    if isinstance(data, str):
        raise TypeError(f'a loader takes a dataset; open it first: belady.open("{data}")')
    raise TypeError(
        "a loader takes a dataset of belady.open, a torch.utils.data.Subset of one or a "
        f"belady.Mixture, not {type(data).__name__}; use torch's own DataLoader for datasets "
        "written in Python"
    )


def _by_origin(engine: dict[str, Any]) -> dict[str, int]:
    """Returns the bytes that were loaded, by where they came from."""
    tiers = {
        tier["name"]: tier["read"]["bytes"] + tier["lent"]["bytes"] for tier in engine["tiers"]
    }
    peers = engine["peers"]["read"]["bytes"]
    return {"source": engine["source"]["bytes"], **tiers, "peers": peers}
