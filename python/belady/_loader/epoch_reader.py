"""Reads the epochs of a loader: runs the pipeline, and delivers its batches.

A `Pipeline` lives across epochs and reads ahead. The `EpochReader` moves the `EpochCursor` as
batches are delivered, and replaces the pipeline when the program goes elsewhere than the pipeline
read ahead: after an early end, a jump to another epoch, a checkpoint, Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .._cluster.cluster import Cluster
from .._cluster.world import World
from .._configuration.loader_options import Options, frameworks
from .._dataset.dataset import Dataset
from .._engine.engine import Engine
from .._orders.order import Order
from .._orders.selection import OrderSelection
from .._pipeline.decode import Source, deliver
from .._pipeline.failures import Failures
from .._pipeline.labels import Labels
from .._pipeline.pipeline import Pipeline
from .._pipeline.position import Position
from .._pipeline.transform_seed import TransformSeed, seed_of_rank, seed_of_repetition
from ..errors import BeladyError, DecodeError, NodeLostError, SampleError
from . import accelerate
from .epoch_cursor import EpochCursor
from .seed import Seed


class EpochReader:
    """Delivers the batches of one epoch after another."""

    def __init__(
        self,
        *,
        engine: Engine,
        data: Dataset,
        shown: Any,
        order: Order,
        selection: OrderSelection,
        options: Options,
        labels: Labels | None,
        seed: Seed,
        world: World,
        peers: Cluster | None,
        lends_read_only: bool,
    ) -> None:
        self._engine = engine
        self._data = data
        #: The dataset as the user gave it.
        self._shown = shown
        self._selection = selection
        self._options = options
        self._labels = labels
        self._seed = seed
        self._world = world
        self._peers = peers
        #: Whether the user accepts read-only memory although a framework is imported.
        self._lends_read_only = lends_read_only
        self.cursor = EpochCursor(order)
        self.pipeline: Pipeline | None = None
        self._iterator: EpochIterator | None = None
        self._registration = accelerate.Registration()
        #: Whether Ctrl-C interrupted the pipeline in an unknown state.
        self._interrupted = False
        self._failures = Failures(data, options)
        #: The batches of an epoch as ordered, to find samples that are missing.
        self._ordered: tuple[int, list[list[int]]] | None = None
        self.totals = {"batches": 0, "samples": 0, "waited_seconds": 0.0}

    # Moves between epochs.

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one."""
        self._leave_epoch()
        self.cursor.set_next(epoch)

    def skip_to(self, batch: int) -> None:
        """Makes `batch` the first one of the next epoch."""
        if self.cursor.is_open:
            self._leave_epoch()
            self.cursor.finish(self.cursor.epoch + 1)
        self.cursor.skip_to(batch)

    def restore(self, order: Order, position: Position, repetition: int, seed: Seed) -> None:
        """Continues at the position of a checkpoint."""
        self.stop()
        self._registration.end()
        self._iterator = self._ordered = None
        self._seed = seed
        self.cursor.restore(order, position, repetition)

    def _leave_epoch(self) -> None:
        """Tells the pipeline and Accelerate that the open epoch ends."""
        cursor, pipeline = self.cursor, self.pipeline
        self._iterator = None
        if not cursor.is_open:
            return
        if pipeline is not None and (cursor.is_complete or pipeline.cut == cursor.delivered):
            pipeline.epoch_over()
        self._registration.end()

    def _begin(self, iterator: EpochIterator) -> None:
        """Opens the next epoch for an iterator."""
        if self.cursor.is_open:
            self._leave_epoch()
            self.cursor.finish(self.cursor.epoch + 1)
        replaced = self.cursor.begin()
        self._iterator = iterator
        reached = self.pipeline is not None and self.pipeline.reaches(self.cursor.position)
        if replaced or not reached or self._interrupted:
            self.stop()
            self._interrupted = False
            if not self.cursor.is_complete:
                self._restart()
        if self.pipeline is not None:
            self.pipeline.begin(self.cursor.epoch)
        self._registration.begin(self._remainder())

    def _remainder(self) -> int:
        """Returns the samples of the last batch of all ranks, without padding."""
        order, selection = self.cursor.order, self._selection
        padding, batches = selection.padding, order.batches(self.cursor.epoch)
        if padding is None or batches is None:
            return accelerate.UNKNOWN
        in_parts = order.identity.get("scheme") == "parts"
        return accelerate.remainder(padding, self._world.size, selection.batch, batches, in_parts)

    # Batches.

    def next(self, iterator: EpochIterator) -> Any:
        """Returns the next batch of an iterator. Raises StopIteration after the last one."""
        if iterator.is_over:
            raise StopIteration
        if self._iterator is not iterator:
            if iterator.is_begun:
                raise BeladyError(
                    "this iterator has ended: a newer one of the same loader was started, and a "
                    "loader reads one epoch at a time; make another DataLoader"
                )
            iterator.is_begun = True
            self._begin(iterator)
        while not self.cursor.is_complete:
            value = self._take()
            if value is not None:
                return value
        iterator.is_over = True
        epoch = self.cursor.epoch
        self.cursor.order.ended(epoch)
        self._leave_epoch()
        self.cursor.finish(epoch + 1)
        raise StopIteration

    def _take(self) -> Any:
        """Returns a batch; None if all of its samples failed, or to try again."""
        self._stop_lending()
        self._go_beyond_cut()
        if self._interrupted:
            self._restart()
        pipeline = self.pipeline
        if pipeline is None:
            raise BeladyError("the loader was closed, or has failed, while it was iterated")
        began = time.monotonic()
        try:
            taken = pipeline.wait(self._options.timeout, self._options.stall_after)
        except TimeoutError:
            raise
        except NodeLostError as error:
            self._leave_node(error)
            return None
        except KeyboardInterrupt:
            self._interrupted = True  # the next call starts again with the batch that was due
            raise
        except SampleError:
            self._passed(pipeline)  # the next call continues with the batch after it
            raise
        except BaseException:
            self.stop()
            raise
        finally:
            self.totals["waited_seconds"] += time.monotonic() - began
        if taken is None:
            self.stop()
            raise BeladyError(f"epoch {self.cursor.epoch} ended before all of its batches came")
        position = self.cursor.position
        self._passed(pipeline)
        batch, outcome = taken
        delivery = deliver(batch, outcome, pipeline.work, position, self._data)
        self.totals["samples"] += len(batch) - len(delivery.failures)
        self._count_failures(batch, delivery.failures, position)
        return self._pinned(delivery.value) if delivery.value is not None else None

    def _stop_lending(self) -> None:
        """Copies samples from now on if a framework was imported since the loader was made.

        Frameworks ignore that memory is read-only.
        """
        if self._options.writable or self._lends_read_only or not frameworks():
            return
        self._options = replace(self._options, writable=True)
        if self.pipeline is not None:
            self._restart()

    def _go_beyond_cut(self) -> None:
        """Restarts the pipeline if the program goes on where it left earlier epochs."""
        if self.pipeline is not None and self.pipeline.cut == self.cursor.delivered:
            self.cursor.forget_cuts()
            self._restart()

    def _passed(self, pipeline: Pipeline) -> None:
        pipeline.passed()
        self.totals["batches"] += 1
        self.cursor.advance()
        self._registration.end_of_dataloader = self.cursor.is_complete

    def _pinned(self, value: Any) -> Any:
        if not self._options.pin_memory or self._options.placement is not None:
            return value
        from .. import torch

        return torch.pinned(value)

    # Failures.

    @property
    def failures(self) -> int:
        """Samples that could not be read or decoded."""
        return self._failures.count

    def _count_failures(
        self, batch: Source, undecoded: list[DecodeError], position: Position
    ) -> None:
        self._failures.undecoded(undecoded)
        if self._may_lack_samples(batch):
            if self._ordered is None or self._ordered[0] != position.epoch:
                self._ordered = (position.epoch, self.peek())
            self._failures.unread(self._ordered[1][position.batch], batch.ids)
        try:
            self._failures.check()
        except BeladyError:
            self.stop()
            raise

    def _may_lack_samples(self, batch: Source) -> bool:
        """Whether samples may be missing; finding which takes the order of a whole epoch."""
        if self._options.on_error == "raise" or self.pipeline is None:
            return False
        selection = self._selection
        if selection.batch_sampler is None and len(set(batch.ids)) == selection.batch:
            return False  # complete, and without a substitute, which would be there twice
        bad = self.pipeline.stats()["bad"]
        return bool(bad["skipped"] + bad["replaced"])

    def peek(self) -> list[list[int]]:
        """Returns the batches of the open epoch, or of the next one, as lists of ids."""
        drawn = self.cursor.order.drawn(self.cursor.epoch)
        if drawn is None:
            return []
        ids, ends = drawn
        return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    # The pipeline.

    def _restart(self) -> None:
        """Starts a pipeline at the batch that is due."""
        self.stop()
        try:
            self.pipeline = self._started(self.cursor.position)
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        self._interrupted = False

    def _started(self, position: Position) -> Pipeline:
        cut = self.cursor.usual_cut()
        if self._peers is not None:
            cut = self._peers.common_start(position, cut)
            self._engine.renew_node()
        try:
            return self._pipeline(position, cut)
        except NodeLostError as error:
            self._engine.leave_node(error)
            return self._pipeline(position, cut)

    def _leave_node(self, error: NodeLostError) -> None:
        """Continues at the batch that is due with an engine of this process.

        The other ranks do the same when they notice; each is at a batch of its own."""
        self.stop()
        self._engine.leave_node(error)
        self.pipeline = self._pipeline(self.cursor.position, self.cursor.usual_cut())
        self.pipeline.begin(self.cursor.epoch)

    def _pipeline(self, position: Position, cut: int | None) -> Pipeline:
        return Pipeline(
            self._engine,
            self._data,
            self.cursor.order,
            self._options,
            position,
            cut,
            self._transform_seed(position),
            self._labels,
            shown=self._shown,
            peers=self._peers is not None,
        )

    def _transform_seed(self, start: Position) -> TransformSeed:
        repeats = self.cursor.order.repeats
        seed = seed_of_repetition(self._seed.of_transforms(), self.cursor.repetition)
        if repeats and self._world.size > 1:
            seed = seed_of_rank(seed, self._world.rank)
        return TransformSeed(seed, start, repeats)

    def stop(self) -> None:
        """Ends the pipeline, if one runs."""
        pipeline, self.pipeline = self.pipeline, None
        if pipeline is not None:
            pipeline.close()

    def close(self) -> None:
        """Ends the pipeline, and the epoch for Accelerate."""
        self._interrupted = False
        self.stop()
        self._registration.end()

    def __del__(self) -> None:
        if getattr(self, "pipeline", None) is not None:
            self.stop()


class EpochIterator(Iterator[Any]):
    """One epoch, or the rest of it."""

    def __init__(self, reader: EpochReader) -> None:
        self._reader = reader
        self.is_begun = False
        self.is_over = False

    def __next__(self) -> Any:
        return self._reader.next(self)

    def __len__(self) -> int:
        return self._reader.cursor.length()
