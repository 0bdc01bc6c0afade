"""The work on a batch: decode or transform each sample, then collate.

`Work` is the same on the user's thread, in decoding threads and in worker processes. It does not
know the samples' paths; `deliver` adds them to failures."""

from __future__ import annotations

import traceback
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..errors import BeladyError, DecodeError, StepError
from .batch import Batch
from .collate import collate
from .labels import Labels
from .position import Position, SamplePlace

if TYPE_CHECKING:
    from .._dataset.dataset import Dataset
    from .fields import Applied

#: A batch of the engine: bytes, or transformed samples.
Source = _native.Batch | _native.OutputBatch


class Failure(NamedTuple):
    """The sample at this position of its batch could not be decoded or transformed."""

    position: int
    #: What the user's code raised, if it did.
    error: BaseException | None
    #: The traceback as text, since tracebacks cannot be pickled.
    lines: str
    #: The failure in a sentence.
    what: str


class Outcome(NamedTuple):
    """The result of the work on a batch."""

    #: The collated batch; None if all samples failed.
    value: Any
    #: Positions of the samples within it; None for all, in order.
    kept: list[int] | None
    failures: list[Failure]


class Work:
    """`decode` or a transform, `collate_fn`, and the handling of failures."""

    def __init__(
        self,
        decode: Callable[..., Any] | None,
        collate_fn: Callable[..., Any] | None,
        on_error: str,
        *,
        applied: Applied | None = None,
        labels: Labels | None = None,
    ) -> None:
        self.decode = decode
        self.collate_fn = collate_fn
        self.on_error = on_error
        self.applied = applied
        self._labels = labels

    @property
    def lends(self) -> bool:
        """Whether batches are the unchanged bytes."""
        return self.decode is None and self.applied is None and self.collate_fn is None

    def labels(self, batch: Source) -> list[Any]:
        """Returns the labels of a batch: the user's, or the dataset's."""
        return batch.labels if self._labels is None else self._labels.of(batch.ids)

    def __getstate__(self) -> dict[str, Any]:
        # Workers get labels with their samples.
        return self.__dict__ | {"_labels": None}

    def decoded(self, data: Any, label: Any, place: SamplePlace) -> Any:
        """Returns one decoded sample, or its failure. Random steps depend on the place."""
        if self.decode is None and self.applied is None:
            return data, label
        # A plain view stays valid as long as it is referenced.
        data = memoryview(data)
        try:
            if self.applied is not None:
                return self.applied(data, label, place)
            assert self.decode is not None
            made = self.decode(data, label)
        except StepError as error:
            return _failed_step(place.position, error)
        except Exception as error:
            return Failure(place.position, error, _own_lines(error), _told(error))
        # A tuple, list or dict is the whole sample; anything else goes beside its label.
        return made if isinstance(made, tuple | list | dict) else (made, label)

    def collated(self, samples: Sequence[Any]) -> Outcome:
        """Collates what `decoded` returned, and handles failures as `on_error` says."""
        if not samples:
            return Outcome(None, [], [])
        failures = [item for item in samples if isinstance(item, Failure)]
        if not failures:
            return Outcome(self._collate(samples), None, [])
        if self.on_error == "raise":
            return Outcome(None, [], failures)
        kept = kept_positions(samples, self.on_error)
        value = self._collate([samples[position] for position in kept]) if kept else None
        return Outcome(value, kept, failures)

    def whole(self, batch: _native.Batch) -> Outcome:
        """Works on a whole batch, on the calling thread."""
        if len(batch) == 0:
            return Outcome(None, [], [])
        labels = self.labels(batch)
        if self.lends:
            return Outcome((batch.samples(), labels), None, [])
        if getattr(self.collate_fn, "takes_batch", False):
            assert self.collate_fn is not None
            return Outcome(self.collate_fn(batch), None, [])
        triples = zip(batch.samples(), labels, batch.ids, strict=True)
        return self.collated(
            [
                self.decoded(
                    data, label, SamplePlace(batch.epoch, batch.iteration, position, sample)
                )
                for position, (data, label, sample) in enumerate(triples)
            ]
        )

    def _collate(self, samples: Sequence[Any]) -> Any:
        try:
            return (self.collate_fn or collate)(list(samples))
        except TimeoutError as error:
            # A TimeoutError of a feed means that a batch has not come yet.
            raise BeladyError(f"collate_fn raised TimeoutError: {error}") from error


def _failed_step(position: int, error: StepError) -> Failure:
    cause = error.__cause__
    if cause is None:
        return Failure(position, None, "", str(error))
    return Failure(position, cause, _own_lines(cause), f"{error}: {_told(cause)}")


def _own_lines(error: BaseException) -> str:
    """Returns its traceback, without the line of belady that called."""
    own = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return "".join(traceback.format_exception(type(error), error, own))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def kept_positions(samples: Sequence[Any], on_error: str) -> list[int]:
    """Returns which samples make up the batch: without failures, or with the next good one instead.

    >>> bad = Failure(1, None, "", "it is damaged")
    >>> kept_positions(["a", bad, "c"], "skip"), kept_positions(["a", bad, "c"], "replace")
    ([0, 2], [0, 2, 2])
    """
    good = [p for p, sample in enumerate(samples) if not isinstance(sample, Failure)]
    if on_error == "skip" or not good:
        return good
    following = [bisect_left(good, position) for position in range(len(samples))]
    return [good[index] if index < len(good) else good[0] for index in following]


class Delivery(NamedTuple):
    """A batch for the user, and the failures in it."""

    value: Any
    failures: list[DecodeError]


def deliver(
    batch: Source, outcome: Outcome, work: Work, position: Position, data: Dataset
) -> Delivery:
    """Adds ids and paths to a batch. Raises the first failure if `on_error` is "raise"."""
    errors = [named(failure, batch) for failure in outcome.failures]
    if errors and work.on_error == "raise":
        raise errors[0] from outcome.failures[0].error
    value = outcome.value
    if type(value) in (tuple, list):
        value = Batch(value)
    if isinstance(value, Batch):
        value._dataset = data
        # The run's numbers: the engine's count begins at the position where its job started.
        value._epoch, value._iteration = position
        if outcome.kept is not None:
            ids = batch.ids
            value._ids = [ids[position] for position in outcome.kept]
        elif work.lends and isinstance(batch, _native.Batch):
            value._source = batch
        else:
            # A decoded batch does not keep the bytes that it was made from.
            value._ids = batch.ids
    return Delivery(value, errors)


def named(failure: Failure, batch: Source) -> DecodeError:
    """Returns the error with its sample's path and the user's traceback."""
    path = batch.paths()[failure.position]
    text = f"decode failed on {path}: {failure.what}\n\n{failure.lines}".rstrip()
    return DecodeError(text, batch.ids[failure.position], path)
