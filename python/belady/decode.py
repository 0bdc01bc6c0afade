"""What is done with the bytes of a batch: `decode` each sample, then collate.

`Work` is the same on the user's thread, in decoding threads and in worker processes. It knows
nothing of where a sample comes from; who runs it puts the name of the sample to what went wrong.
"""

from __future__ import annotations

import traceback
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from .batch import Batch
from .collate import collate
from .errors import BeladyError, DecodeError

if TYPE_CHECKING:
    from .dataset import Dataset


class Failure(NamedTuple):
    """`decode` raised on the sample at this position of its batch."""

    position: int
    error: BaseException
    #: The user's own lines, for where tracebacks cannot travel.
    lines: str


class Outcome(NamedTuple):
    """What became of a batch."""

    #: What `collate` made; None if no sample was left.
    value: Any
    #: Positions of the samples within it; None for all, in order.
    kept: list[int] | None
    failures: list[Failure]


class Work:
    """`decode`, `collate_fn`, and what becomes of samples that fail."""

    def __init__(
        self,
        decode: Callable[..., Any] | None,
        collate_fn: Callable[..., Any] | None,
        on_error: str,
    ) -> None:
        self.decode = decode
        self.collate_fn = collate_fn
        self.on_error = on_error

    def decoded(self, position: int, data: Any, label: int | None) -> Any:
        """One sample, or the failure."""
        if self.decode is None:
            return data, label
        try:
            made = self.decode(data, label)
        except Exception as error:
            own = error.__traceback__.tb_next if error.__traceback__ is not None else None
            lines = "".join(traceback.format_exception(type(error), error, own))
            return Failure(position, error, lines)
        # A tuple, list or dict is the whole sample; anything else goes beside its label.
        return made if isinstance(made, tuple | list | dict) else (made, label)

    def collated(self, samples: Sequence[Any]) -> Outcome:
        """A batch of what `decoded` gave, as `on_error` says."""
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
        """A batch at once, on the calling thread."""
        if len(batch) == 0:
            return Outcome(None, [], [])
        if self.decode is None and self.collate_fn is None:
            return Outcome((batch.samples(), batch.labels), None, [])
        if getattr(self.collate_fn, "takes_batch", False):
            assert self.collate_fn is not None
            return Outcome(self.collate_fn(batch), None, [])
        pairs = zip(batch.samples(), batch.labels, strict=True)
        return self.collated(
            [self.decoded(position, data, label) for position, (data, label) in enumerate(pairs)]
        )

    def _collate(self, samples: Sequence[Any]) -> Any:
        try:
            return (self.collate_fn or collate)(list(samples))
        except TimeoutError as error:
            # To us a TimeoutError says that a batch has not come yet.
            raise BeladyError(f"collate_fn raised TimeoutError: {error}") from error


def kept_positions(samples: Sequence[Any], on_error: str) -> list[int]:
    """Which samples make up the batch: without failures, or with the next good one instead.

    >>> bad = Failure(1, ValueError(), "")
    >>> kept_positions(["a", bad, "c"], "skip"), kept_positions(["a", bad, "c"], "replace")
    ([0, 2], [0, 2, 2])
    """
    good = [p for p, sample in enumerate(samples) if not isinstance(sample, Failure)]
    if on_error == "skip" or not good:
        return good
    following = [bisect_left(good, position) for position in range(len(samples))]
    return [good[index] if index < len(good) else good[0] for index in following]


class Delivery(NamedTuple):
    """A batch on its way to the user."""

    value: Any
    failures: list[DecodeError]


def deliver(
    batch: _native.Batch, outcome: Outcome, work: Work, epoch: int, data: Dataset
) -> Delivery:
    """Puts names to samples, and raises what has to be raised."""
    errors = [named(failure, batch) for failure in outcome.failures]
    if errors and work.on_error == "raise":
        raise errors[0] from outcome.failures[0].error
    value = outcome.value
    if type(value) in (tuple, list):
        value = Batch(value)
    if isinstance(value, Batch):
        value._dataset = data
        value._epoch = epoch
        value._iteration = batch.iteration
        if outcome.kept is not None:
            ids = batch.ids
            value._ids = [ids[position] for position in outcome.kept]
        elif work.decode is None and work.collate_fn is None:
            value._source = batch
        else:
            # Whoever keeps what was decoded need not keep the bytes it was made from.
            value._ids = batch.ids
    return Delivery(value, errors)


def named(failure: Failure, batch: _native.Batch) -> DecodeError:
    """The error with the name of its sample, and the user's own lines."""
    path = batch.paths()[failure.position]
    what = f"{type(failure.error).__name__}: {failure.error}"
    text = f"decode failed on {path}: {what}\n\n{failure.lines.rstrip()}"
    return DecodeError(text, batch.ids[failure.position], path)
