"""The loader: torch's `DataLoader` in its names and its order, fed by an engine that knows the
future.

One `iter()` is one epoch. Behind it a `Pipeline` runs across epochs; the loader only keeps count
of what was delivered, tells the `Order` what happens, and starts the pipeline anew when the user
does not go where it had read ahead. An iterator that is made but never asked for a batch has no
effect. Making a new one ends the one before, in mid-epoch if need be, as leaving a loop by
`break` does: the next epoch is then the next in the order, exactly as torch would draw it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

from . import arguments, choose, distributed, options as options_, peers as peers_, seeds, state, with_accelerate
from .dataset import Dataset
from .decode import Source, deliver
from .draws import Draws, seed_of_rank, seed_of_turn
from .engine import Engine, cluster_for, for_loader
from .errors import BeladyError, DecodeError, SampleError
from .failures import Failures
from .labels import Labels
from .mixing import Mixture, Weighted
from .pipeline import Pipeline
from .samplers import LoaderBatchSampler, LoaderSampler
from .state import Position
from .stats import Stats
from .subsets import of_torch

log = logging.getLogger("belady")


class DataLoader:
    """Batches of a dataset, epoch after epoch, in torch's order.

    >>> data = belady.open(photos)
    >>> loader = belady.DataLoader(data, batch_size=16, shuffle=True, seed=0, cache="ram:1MiB")
    >>> for epoch in range(2):
    ...     for samples, labels in loader:
    ...         assert len(samples) == len(labels)
    >>> len(loader)
    4

    Arguments that torch has mean what they mean there:

    - `batch_size` (on this rank), `shuffle`, `sampler`, `batch_sampler`, `drop_last`,
      `generator`: see `belady.choose` for the orders they make. A generator is moved as torch
      moves it; the engine reads ahead on a copy.
    - `collate_fn`: called with the list of samples of a batch.
    - `num_workers`: 0 runs `decode` in `num_threads` threads; more run it in so many processes,
      which read from shared memory. Bytes alone need no workers, so without `decode` and
      `collate_fn` it has no effect.
    - `worker_init_fn`, `multiprocessing_context`, `prefetch_factor` (batches decoded ahead by
      each worker, or by all threads).
    - `pin_memory`: tensors are copied to pinned memory if there is an accelerator.
    - `timeout`: seconds after which a batch that has not come is a `TimeoutError`; 0 is never.
    - `persistent_workers`: workers always live across epochs; with it the generator draws as
      torch's does then. `in_order`, `pin_memory_device`: accepted; batches come in order.

    Ours:

    - `seed`: of the shuffle, and of what transforms draw. "torch" follows torch where it is imported:
      `torch.manual_seed` decides about both, and several processes shuffle as a
      `DistributedSampler` does; without torch it is 0. None draws one, at rank 0 for all.
    - `epochs`: how many there will be, if it is known.
    - `decode`: called with a sample's bytes (a memoryview) and its label. If it returns a tuple,
      list or dict, that is the sample; anything else goes beside the label.
    - `transform`: instead of `decode`, a chain of `belady.transforms` that native threads run, or
      fields: `{"image": ("jpg", chain), "label": ("cls", T.Int())}`. Functions of yours may stand
      in it; torchvision's transforms are taken as `ImageFolder` takes them. `collate_fn` gets a list of
      `(array, label)` then. Without either, the dataset's own `transform`.
    - `labels`: a list by id, a mapping by path or id, or a function of the path, for labels that
      the dataset does not know.
    - `device`: of torch ("cuda", "cuda:1") or of JAX (a device or a sharding). Batches are moved
      there from pinned memory, ahead of use; pixels travel as bytes and are normalised there.
      `memory_format`: "channels_last" for images that become floats on a device of torch.
      `decode="gpu"`: JPEG files are decoded by the GPU too.
    - `num_threads`: threads that decode or transform; "auto" is one a core.
    - `cache`, `retries`, `read_timeout`, `metrics`: as for `belady.Engine`, which is made; or
      `engine`, one that is there. Without either the cache is a quarter of the free memory, at
      most the dataset. `cache_share`: this loader's part of what other loaders have left.
    - `rank`, `world_size`: see `belady.distributed`. `scheme`: how ranks share a batch:
      "uniform" (every so many-th sample, as torch does it), "parts" (one stretch after the other), ...; None is
      "parts" where Accelerate is used, whose `gather_for_metrics` lays them end to end, else "uniform".
      `shard_sampler`: whether ranks share out what a `sampler` or `batch_sampler` gives; None does
      so with those of torch that know nothing of ranks.
    - `peers`, `key`: where the processes of a job meet whose caches are one cache, and the job's
      key: see `belady.cluster`. "auto" finds them; None caches alone. Every rank makes the same
      loaders in the same order.
    - `next_epoch`: how much of the next epoch is staged before you begin it, if `epochs` is not given:
      two batches (eight with peers), or so many bytes if that is more; None is 5 % of the dataset, at
      most 32 MiB.
    - `staging`: the buffer that this rank's batches are made in; None is its part of 512 MiB for all
      ranks of the node, or what two batches need. `policy`: what decides which samples are kept.
    - `on_error`: "raise", "skip" or "replace" samples that cannot be read or decoded;
      `max_failures`: more than so many of these are an error.
    - `writable`: whether you may write to the memory of samples. Then each is copied into the
      staging buffer. Otherwise samples in RAM are lent from the cache itself, read-only and
      without a copy. None is True if torch, jax or tensorflow is imported, since their tensors
      ignore that memory is read-only, or if there is a `decode`; else False.
    - `stall_after`: a wait of so many seconds is told, with what is waited for.
    - `trace`: a file in which the policy's decisions are recorded.
    """

    #: For Accelerate: `accelerator.prepare_data_loader` gives it back as it is.
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
        seed: int | str | None = seeds.TORCH,
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
        policy: str = "belady",
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
        given = {name: value for name, value in locals().items() if name not in ("self", "unknown")}
        arguments.no_unknown(unknown, "DataLoader", given)
        self._mixture = dataset if isinstance(dataset, Mixture) else None
        self._data = _dataset(dataset)
        if transform is None and decode in (None, "gpu"):
            given["transform"] = self._data.transform
        self._world = distributed.world(rank, world_size)
        self._options = options_.checked(given, self._world)
        cluster = cluster_for(given, self._world)
        if cluster is not None and cluster.world != self._world:
            # Who has met the others knows who of them is on this machine.
            self._world = cluster.world
            self._options = options_.checked(given, self._world)
        self._data.list_together(cluster)
        if len(self._data) == 0:
            raise ValueError("there are no samples; a dataset, or a subset of one, needs at least one")
        self._seed = seeds.checked(seed)
        self._seed_is_drawn = seed is None
        if seed is None:
            self._seed = seeds.Seed(peers_.common_seed(cluster, self._world, secrets.randbits(63)))
        if self._seed.follows_torch and _is_ours(self._mixture, sampler, shuffle):
            if self._world.size == 1:
                self._seed = seeds.Seed(self._seed.of_draws())
            self._seed_is_drawn = True
        self._choice = choose.checked(
            samples=len(self._data),
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            generator=generator,
            seed=self._seed.of_orders,
            follows_torch=self._seed.follows_torch,
            scheme=scheme,
            world=self._world,
            mixture=self._mixture,
            shard_sampler=shard_sampler,
            asked_ahead=options_.asked_ahead(given),
            persistent=persistent_workers and num_workers > 0,
        )
        self._options = options_.with_room(self._options, self._data, self._batch)
        self._lends_knowingly = writable is False or self._options.native
        self._labels = None if labels is None else Labels(labels, self._data)
        self._given_sampler = (sampler, batch_sampler)
        self._generator = generator
        self._given = given
        self._pipeline: Pipeline | None = None
        self._order = self._choice.order()
        self._owns_engine = engine is None
        self._peers = self._agreed(cluster)
        self.engine = for_loader(given, self._data, self._world, cluster)
        self._data.serve_from(self.engine)
        self._epoch = 0  # of the iteration that goes on, or comes next
        self._begun = False
        self._delivered = 0  # batches of this epoch
        #: How often in a row the order has given the epoch that is read: a `DistributedSampler` that is never
        #: told its epoch gives the same one for ever, and yet the draws of transforms go on, as with torch.
        self._again = 0
        self._last_begun: int | None = None
        self._jumped = False
        #: After how many batches the last two epochs were left; None for their end.
        self._left_after: tuple[int | None, int | None] = (None, None)
        self._iteration: _Epoch | None = None
        self._seat = with_accelerate.Seat()
        #: Ctrl-C came while a batch was made or all was started, nobody knows how far.
        self._interrupted = False
        self._failures = Failures(self._data, self._options)
        self._promised: tuple[int, list[list[int]]] | None = None  # an epoch as it should be
        self._totals = {"batches": 0, "samples": 0, "waited_seconds": 0.0}

    def _agreed(self, cluster: peers_.Cluster | None) -> peers_.Cluster | None:
        """The cluster, if all ranks have said that they run the same, and know what others read."""
        if cluster is None:
            return None
        run = self._run()
        cluster.agree(
            "a loader",
            {
                "dataset": f"{run.fingerprint} ({len(self._data)} samples)",
                "order": run.order["kind"],
                "seed": self._choice.seed,
                **{name: run.order[name] for name in run.order if name not in ("kind", "seed")},
                "batch_size": self._batch,
                "drop_last": run.drop_last,
                "epochs": self._options.epochs,
                "policy": self._options.policy,
            },
        )
        if self._order.native.place() == (cluster.rank, cluster.size):
            return cluster
        log.warning(
            "the order of this loader comes from a sampler or a generator, which only its own rank "
            "knows, so its cache is not shared; use shuffle=True, torch's DistributedSampler, "
            "belady.Weighted or belady.Mixture to share it"
        )
        return None

    # What torch's loader shows.

    @property
    def dataset(self) -> Any:
        """The dataset that was given; that of a mixture."""
        return self._data if self._mixture is not None else self._given["dataset"]

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch on this rank; None with a batch sampler."""
        return None if self._given_sampler[1] is not None else self._choice.batch

    @property
    def _batch(self) -> int | None:
        """The same, also of torch's own `BatchSampler`; None if batches differ."""
        return None if self._choice.batch_sampler is not None else self._choice.batch

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        return self._choice.drop_last

    @property
    def num_workers(self) -> int:
        """Worker processes that were asked for."""
        return self._options.workers

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        """The function that was given."""
        return self._options.collate_fn

    @property
    def generator(self) -> Any:
        """The generator that was given."""
        return self._generator

    @property
    def pin_memory(self) -> bool:
        """Whether tensors are copied to pinned memory."""
        return self._options.pin_memory

    @property
    def prefetch_factor(self) -> int | None:
        """Batches that are decoded ahead, by each worker process or by all threads; None without workers if
        none was named, as with torch."""
        named = self._given["prefetch_factor"] is not None
        return self._options.prefetch if named or self._options.workers > 0 else None

    @property
    def worker_init_fn(self) -> Callable[[int], Any] | None:
        """The function that was given."""
        return self._options.worker_init_fn

    @property
    def multiprocessing_context(self) -> Any:
        """How worker processes are started, as a context; None where none was named."""
        named = self._given["multiprocessing_context"] is not None
        return self._options.context if named else None

    @property
    def persistent_workers(self) -> bool:
        """As it was given: worker processes live across epochs in any case."""
        return bool(self._given["persistent_workers"])

    @property
    def pin_memory_device(self) -> str:
        """As it was given."""
        return str(self._given["pin_memory_device"])

    @property
    def in_order(self) -> bool:
        """As it was given: batches come in order in any case."""
        return bool(self._given["in_order"])

    @property
    def timeout(self) -> float:
        """Seconds after which a batch that has not come is an error; 0 for never."""
        return self._options.timeout

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or one that stands for the loader's own order."""
        if self._given_sampler[0] is not None:
            return self._given_sampler[0]
        return LoaderSampler(self, self._choice.length)

    @property
    def batch_sampler(self) -> Any:
        """Likewise for batches."""
        shown = self._given_sampler[1]
        if shown is None:
            shown = LoaderBatchSampler(self, self.sampler)
        with_accelerate.watch_skips(self, shown)
        return shown

    @property
    def epoch(self) -> int:
        """The epoch that is being read, or comes next."""
        return self._order.upcoming(self._epoch) if not self._begun else self._epoch

    def __len__(self) -> int:
        batches = self._order.batches(self.epoch)
        if batches is None:
            raise TypeError("the sampler has no length, so the number of batches is not known")
        return batches

    def __iter__(self) -> _Epoch:
        return _Epoch(self)

    def peek(self) -> list[list[int]]:
        """The batches of the epoch that is being read, or comes next, as lists of ids."""
        drawn = self._order.drawn(self.epoch)
        if drawn is None:
            return []
        ids, ends = drawn
        return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    # Where it is.

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `iter()` reads. Never called, epochs follow by themselves."""
        wanted = arguments.count(epoch, "epoch")
        upcoming = self._epoch + 1 if self._begun else self._epoch
        if wanted != upcoming:
            self._finish_epoch(wanted)
            self._order.jump(wanted)
            self._jumped = True
        elif self._begun:
            self._finish_epoch(wanted)

    def skip_to(self, batch: int) -> None:
        """The next `iter()` begins with this batch of its epoch, as after `accelerate.skip_first_batches`."""
        wanted = arguments.count(batch, "batch")
        if self._begun:
            self._finish_epoch(self._epoch + 1)
        if not self._jumped:
            self._epoch = self.epoch
        self._delivered = wanted
        if wanted > 0 and not self._order.follows_from_number(self._epoch):
            log.warning(
                "%d batches of epoch %d are skipped, whose order torch's default generator draws from where it "
                "is now; if it was elsewhere when they were read, samples are repeated or left out: pass "
                "seed=, or save the loader's state_dict() and load it",
                wanted,
                self._epoch,
            )

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, for a checkpoint: small, and safe for JSON.

        It counts batches that were delivered. The same on every rank.

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
        # A DistributedSampler of the user's may be told of a later epoch before we are.
        position = Position(max(self._epoch, self.epoch), self._delivered)
        saved = state.pack(position, self._run(), self._order.state(position.epoch))
        return saved | {"draws": self._seed.of_draws(), "again": self._again}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Goes on where a state was saved: the next `iter()` gives what was left of its epoch.

        A state that was saved after the last batch of an epoch, within the loop, leaves nothing:
        the next `iter()` is then empty, and the one after it is the next epoch.
        """
        kind = saved["order"].get("kind") if _looks_like_state(saved) else None
        order = self._order
        seed = saved["order"].get("seed") if kind is not None else None
        if self._seed_is_drawn and type(seed) is int and seed != self._choice.seed:
            # Nobody has named one, so it is that of the run that goes on.
            self._choice, self._seed = replace(self._choice, seed=seed), seeds.Seed(seed)
            order = self._choice.order(kind)
        elif kind != order.identity["kind"]:
            order = self._choice.order(kind)
        position, details = state.unpack(saved, self._run(order.identity))
        self._seed = self._seed.of_state(saved.get("draws"))
        order.restore(details, position.epoch)
        order.goes_on = position.batch > 0
        self._stop()
        self._seat.end()
        self._order = order
        self._epoch, self._delivered = position
        again = saved.get("again", 0)
        self._last_begun, self._again = None, again if type(again) is int and position.batch > 0 else 0
        self._begun = self._jumped = False
        self._iteration = self._promised = None
        self._left_after = (None, None)

    def _run(self, identity: dict[str, Any] | None = None) -> state.Run:
        batch = self._batch
        return state.Run(
            self._data.fingerprint,
            None if batch is None else batch * self._world.size,
            self.drop_last,
            identity or self._order.identity,
        )

    # One epoch.

    def _begin(self, iteration: _Epoch) -> None:
        """The first batch of an iteration is asked for."""
        if self._begun:
            self._finish_epoch(self._epoch + 1)
        upcoming = self._order.upcoming(self._epoch)
        if not self._jumped and upcoming != self._epoch:
            self._epoch, self._delivered = upcoming, 0
        if self._delivered == 0:
            same = self._last_begun == self._epoch and not self._jumped
            self._again = self._again + 1 if same else 0
        self._last_begun = self._epoch
        self._jumped = False
        self._iteration = iteration
        self._begun = True
        fresh = self._order.begin(self._epoch)
        position = Position(self._epoch, self._delivered)
        going_on = self._pipeline is not None and self._pipeline.reaches(position)
        if fresh or not going_on or self._interrupted:
            self._stop()
            self._interrupted = False
            if self._left() != 0:
                self._start_again()
        if self._pipeline is not None:
            self._pipeline.begin(self._epoch)
        self._seat.begin(self._remainder())

    def _remainder(self) -> int:
        """Samples of the last batch of all ranks, without padding."""
        padding, batches = self._choice.padding, self._order.batches(self._epoch)
        if padding is None or batches is None:
            return with_accelerate.UNKNOWN
        in_parts = self._order.identity.get("scheme") == "parts"
        return with_accelerate.remainder(padding, self._world.size, self._choice.batch, batches, in_parts)

    def _start(self, position: Position) -> Pipeline:
        cut = self._habit()
        if self._peers is not None:
            cut = self._peers.common_start(position, cut)
        return Pipeline(
            self.engine,
            self._data,
            self._order,
            self._options,
            position,
            cut,
            self._draws(position),
            self._labels,
            shown=self.dataset,
            peers=self._peers is not None,
        )

    def _draws(self, start: Position) -> Draws:
        """What transforms draw from."""
        seed = seed_of_turn(self._seed.of_draws(), self._again)
        if self._order.repeats and self._world.size > 1:
            seed = seed_of_rank(seed, self._world.rank)
        return Draws(seed, start, self._order.repeats)

    def _habit(self) -> int | None:
        """Batches after which epochs are left, if the last two were left after as many."""
        last, before = self._left_after
        return last if last == before and (last or 0) > self._delivered else None

    def _left(self) -> int | None:
        """Batches of this epoch that are not delivered yet, if that is known."""
        batches = self._order.batches(self._epoch)
        return None if batches is None else max(0, batches - self._delivered)

    def _next(self, iteration: _Epoch) -> Any:
        if iteration.over:
            raise StopIteration
        if self._iteration is not iteration:
            if iteration.begun:
                raise BeladyError(
                    "this iterator has ended: a newer one of the same loader was started, "
                    "and a loader reads one epoch at a time; make another DataLoader"
                )
            iteration.begun = True
            self._begin(iteration)
        while self._left() != 0:
            value = self._take()
            if value is not None:
                return value
        iteration.over = True
        self._order.ended(self._epoch)
        self._finish_epoch(self._epoch + 1)
        raise StopIteration

    def _take(self) -> Any:
        """A batch; None if nothing was left of it after failures."""
        self._stop_lending()
        self._go_beyond_cut()
        if self._interrupted:
            self._start_again()
        pipeline = self._pipeline
        if pipeline is None:
            raise BeladyError("the loader was closed, or has failed, while it was iterated")
        began = time.monotonic()
        try:
            taken = pipeline.wait(self._options.timeout, self._options.stall_after)
        except TimeoutError:
            raise
        except KeyboardInterrupt:
            self._interrupted = True  # the next call begins anew with the batch that was due
            raise
        except SampleError:
            self._passed(pipeline)  # the next call goes on with the batch after it
            raise
        except BaseException:
            self._stop()
            raise
        finally:
            self._totals["waited_seconds"] += time.monotonic() - began
        if taken is None:
            self._stop()
            raise BeladyError(f"epoch {self._epoch} ended before all of its batches came")
        self._passed(pipeline)
        batch, outcome = taken
        position = Position(self._epoch, self._delivered - 1)
        delivery = deliver(batch, outcome, pipeline.work, position, self._data)
        self._totals["samples"] += len(batch) - len(delivery.failures)
        self._count_failures(batch, delivery.failures)
        return self._pinned(delivery.value) if delivery.value is not None else None

    def _stop_lending(self) -> None:
        """A framework that was imported since the loader was made writes where it likes."""
        if self._options.writable or self._lends_knowingly or not options_.frameworks():
            return
        self._options = replace(self._options, writable=True)
        if self._pipeline is not None:
            self._start_again()

    def _go_beyond_cut(self) -> None:
        """The epoch goes on where the last ones were left."""
        if self._pipeline is not None and self._pipeline.cut == self._delivered:
            self._left_after = (None, None)
            self._start_again()

    def _start_again(self) -> None:
        """A new pipeline, from the batch on that is due."""
        self._stop()
        try:
            self._pipeline = self._start(Position(self._epoch, self._delivered))
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        self._interrupted = False

    def _passed(self, pipeline: Pipeline) -> None:
        pipeline.passed()
        self._delivered += 1
        self._totals["batches"] += 1
        self._order.delivered(self._epoch, self._delivered)
        self._seat.end_of_dataloader = self._left() == 0

    def _count_failures(self, batch: Source, undecoded: list[DecodeError]) -> None:
        self._failures.undecoded(undecoded)
        if self._may_lack_samples(batch):
            if self._promised is None or self._promised[0] != self._epoch:
                self._promised = (self._epoch, self.peek())
            self._failures.unread(self._promised[1][self._delivered - 1], batch.ids)
        try:
            self._failures.check()
        except BeladyError:
            self._stop()
            raise

    def _may_lack_samples(self, batch: Source) -> bool:
        """Whether some could not be read; finding which takes the order of a whole epoch."""
        pipeline = self._pipeline
        if self._options.on_error == "raise" or pipeline is None:
            return False
        if self._batch is not None and len(set(batch.ids)) == self._batch:
            return False  # complete, and without a substitute, which is there twice
        bad = pipeline.stats()["bad"]
        return bool(bad["skipped"] + bad["replaced"])

    def _pinned(self, value: Any) -> Any:
        if not self._options.pin_memory or self._options.placement is not None:
            return value
        from . import torch

        return torch.pinned(value)

    def _finish_epoch(self, following: int) -> None:
        """What comes next is the beginning of another epoch."""
        if self._begun:
            complete = self._left() == 0
            self._left_after = (None if complete else self._delivered, self._left_after[0])
            if self._pipeline is not None and (complete or self._pipeline.cut == self._delivered):
                self._pipeline.epoch_over()
            self._seat.end()
        self._epoch = following
        self._delivered = 0
        self._begun = False
        self._iteration = None

    # What it did, and its end.

    def stats(self) -> Stats:
        """What was delivered and waited for, where it came from, and what the engine did.

        `str()` is a table. `stats()["engine"]["peers"]` says what went to and from other processes,
        and how many of them are down.
        """
        values: dict[str, Any] = {"epoch": self.epoch, "batch": self._delivered, **self._totals}
        values["failures"] = self._failures.count
        if self._pipeline is not None:
            values["engine"] = self._pipeline.stats()
        else:
            values["engine"] = self.engine.native.stats()
        values["bytes_from"] = _by_place(values["engine"])
        return Stats(values)

    def close(self) -> None:
        """Ends threads and workers, and gives memory back: the cache too, if the engine is the
        loader's own. Iterating again starts anew."""
        self._interrupted = False
        self._stop()
        self._seat.end()
        if self._owns_engine:
            self.engine.let_go()

    def _stop(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pipeline", None) is not None:
            self._stop()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DataLoader has threads and cannot be pickled; send the dataset, and make a loader "
            "in the other process"
        )

    def __repr__(self) -> str:
        return f"<belady.DataLoader of {self._data!r}>"


class _Epoch(Iterator[Any]):
    """One epoch, or what is left of it."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self.begun = False
        self.over = False

    def __next__(self) -> Any:
        return self._loader._next(self)

    def __len__(self) -> int:
        return len(self._loader)


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
        "a loader takes a dataset of belady.open, a torch.utils.data.Subset of one or a belady.Mixture, "
        f"not {type(data).__name__}; "
        "use torch's own DataLoader for datasets written in Python"
    )


def _is_ours(mixture: object, sampler: object, shuffle: object) -> bool:
    """Whether it is an order that torch does not have."""
    return mixture is not None or isinstance(sampler, Weighted) or shuffle == "permutation"


def _by_place(engine: dict[str, Any]) -> dict[str, int]:
    """Bytes that were loaded, by where they came from."""
    tiers = {
        tier["name"]: tier["read"]["bytes"] + tier["lent"]["bytes"] for tier in engine["tiers"]
    }
    peers = engine["peers"]["read"]["bytes"]
    return {"source": engine["source"]["bytes"], **tiers, "peers": peers}


def _looks_like_state(saved: object) -> bool:
    return isinstance(saved, dict) and isinstance(saved.get("order"), dict)
