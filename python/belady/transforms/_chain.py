"""A checked chain, and how a chain with Python functions runs.

Consecutive native steps are one segment; functions stand between segments. A function gets the
result of the step before it: the bytes, an image as a numpy array of uint8 (height, width,
channels), or a tensor (torch's, if the program has imported torch). Its result goes into the next
segment. A chain without functions is one segment, which loaders run natively."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import _native
from .._pipeline import arrays
from ..errors import BeladyError, StepError
from . import images, numbers, values
from ._from_torchvision import steps_of
from .compose import Link, as_json_text, flattened, name_of
from .step import Step

#: Separates the draws of segments: 2**64 divided by the golden ratio.
_GOLDEN = 0x9E3779B97F4A7C15
#: Steps that read bytes.
_READ_BYTES = (images.Decode, numbers.Raw, numbers.Numpy, values.Int, values.Float)
#: Steps that accept the numbers of a `tf.train.Example`.
_ON_NUMBERS = (
    numbers.Reshape,
    numbers.ToDtype,
    numbers.ScaleShift,
    numbers.Log,
    numbers.Normalize,
)
#: Steps after which a value is a tensor and no longer an image.
_MAKE_NUMBERS = (numbers.ToTensor, numbers.Raw, numbers.Numpy, values.Int, values.Float)


class Draw(NamedTuple):
    """What random draws depend on."""

    seed: int
    epoch: int
    sample: int


class Chain:
    """Steps that fit together; with `of_part` they get a part of a sample, perhaps numbers."""

    def __init__(self, steps: Any, *, of_part: bool = False) -> None:
        self.steps = steps_of(steps) or flattened(steps)
        self._of_part = of_part
        self._segments = _segments(self.steps, of_part)

    @property
    def native(self) -> bool:
        """Whether it runs without Python."""
        return all(isinstance(step, Step) for step in self.steps)

    @property
    def whole(self) -> _native.Chain | None:
        """The whole chain natively; None if it leaves the bytes unchanged."""
        assert self.native, "a chain with functions is run in pieces"
        first = self._segments[0] if self._segments else None
        return first.chain if isinstance(first, _Segment) else None

    @property
    def gives(self) -> type[Step] | None:
        """`Text`, `Bytes` or `Label`, if the chain is that step alone."""
        first = self.steps[0] if len(self.steps) == 1 else None
        return type(first) if isinstance(first, Step) and not first.native else None

    def __call__(
        self, data: Any, seed: int, epoch: int, sample: int, part: str | None = None
    ) -> Any:
        """Transforms a sample, or a part of it; returns an array, or the last function's result."""
        value, draw = data, Draw(seed, epoch, sample)
        segments = self._segments
        if part is not None:
            first = segments[0] if segments else None
            chain = first.chain if isinstance(first, _Segment) else None
            value, segments = _part(data, part, chain, draw), segments[1 if chain else 0 :]
        for segment in segments:
            value = segment.run(value, draw)
        return arrays.for_user(value) if isinstance(value, _native.Array) else value

    def __reduce__(self) -> Any:
        return _again, (self.steps, self._of_part)

    def __repr__(self) -> str:
        return f"<chain of {len(self.steps)} steps>"


def _again(steps: Sequence[Link], of_part: bool) -> Chain:
    return Chain(steps, of_part=of_part)


class _Segment:
    """Consecutive native steps, on bytes or on the result of a function."""

    def __init__(self, first: int, steps: Sequence[Step], of_part: bool) -> None:
        #: Steps before it.
        self._first = first
        of_numbers = of_part and isinstance(steps[0], _ON_NUMBERS)
        self._of_bytes = isinstance(steps[0], _READ_BYTES) or (first == 0 and not of_numbers)
        text = as_json_text(steps)
        try:
            self.chain = _native.Chain(text, before=None if self._of_bytes else first)
        except ValueError as error:
            raise ValueError(self._renumbered(str(error))) from None

    def run(self, value: Any, draw: Draw) -> Any:
        try:
            if not self._of_bytes:
                return self.chain.run_array(*arrays.to_buffer(value), *draw)
            if self._first == 0:
                return self.chain.run(value, *draw)
            # Each segment draws other numbers.
            seed = (draw.seed + self._first * _GOLDEN) % 2**64
            return self.chain.run(arrays.as_bytes(value), seed, draw.epoch, draw.sample)
        except (TypeError, BufferError) as error:
            raise StepError(f"step {self._first} returned {error}") from None
        except (BeladyError, ValueError) as error:
            raise StepError(self._renumbered(str(error))) from None

    def _renumbered(self, sentence: str) -> str:
        """Returns a message with the step's number in the whole chain."""
        if not self._of_bytes:
            return sentence
        return re.sub(r"^step (\d+)", lambda found: f"step {int(found[1]) + self._first}", sentence)


def _part(data: Any, name: str, chain: _native.Chain | None, draw: Draw) -> Any:
    """Returns a part of a sample, transformed by the first segment."""
    try:
        return _native.sample_part(data, name, chain, *draw)
    except BeladyError as error:
        raise StepError(str(error)) from None


class _Function:
    """A function of the user."""

    def __init__(
        self, index: int, function: Callable[[Any], Any], of_numbers: bool, of_function: bool
    ) -> None:
        self._where = f"step {index + 1} ({name_of(function)})"
        self._function = function
        self._of_numbers = of_numbers
        self._idle = _does_nothing_to_arrays(function)
        if self._idle and not of_numbers and not of_function:
            raise ValueError(self._refusal())

    def run(self, value: Any, draw: Draw) -> Any:
        if isinstance(value, _native.Array):
            value = arrays.for_user(value) if self._of_numbers else arrays.to_numpy(value)
        if self._idle and type(value).__module__ == "numpy":
            raise StepError(self._refusal())
        try:
            return self._function(value)
        except Exception as error:
            raise StepError(self._where) from error

    def _refusal(self) -> str:
        name = type(self._function).__name__
        ours = hasattr(images, name) or hasattr(numbers, name)
        what = f"write belady.transforms.{name}" if ours else "put it behind ToTensor"
        return (
            f"{self._where}: torchvision's {name} would get an array here, and leaves arrays "
            f"unchanged; {what}"
        )


class _Text:
    """Bytes as text."""

    def run(self, value: Any, draw: Draw) -> str:
        return as_text(value)


class _Bytes:
    """A copy of the bytes."""

    def run(self, value: Any, draw: Draw) -> bytes:
        return bytes(value)


def as_text(value: Any) -> str:
    """Decodes UTF-8; other bytes are escaped as in names of files."""
    return bytes(value).decode("utf-8", "surrogateescape")


def _segments(steps: Sequence[Link], of_part: bool) -> list[_Segment | _Function | _Text | _Bytes]:
    segments: list[_Segment | _Function | _Text | _Bytes] = []
    of_numbers = False
    index = 0
    while index < len(steps):
        step = steps[index]
        run = _native_run(steps[index:])
        if run:
            segments.append(_Segment(index, run, of_part))
            made = (*_MAKE_NUMBERS, *_ON_NUMBERS)
            of_numbers = of_numbers or any(isinstance(step, made) for step in run)
        elif isinstance(step, Step):
            segments.append(_value(index, step, steps))
        else:
            of_function = bool(segments) and isinstance(segments[-1], _Function)
            segments.append(_Function(index, step, of_numbers, of_function))
        index += max(1, len(run))
    return segments


def _native_run(steps: Sequence[Link]) -> list[Step]:
    """Returns the native steps at the beginning."""
    run = []
    for step in steps:
        if not (isinstance(step, Step) and step.native):
            break
        run.append(step)
    return run


def _value(index: int, step: Step, steps: Sequence[Link]) -> _Text | _Bytes:
    name = name_of(step)
    if index > 0:
        raise ValueError(f"step {index + 1} ({name}) reads the bytes; put it first")
    if isinstance(step, values.Label) and len(steps) > 1:
        raise ValueError(f"step 1 ({name}) takes no further steps; leave them out")
    if _native_run(steps[1:]):
        raise ValueError(f"step 2 ({name_of(steps[1])}): it works on the sample; leave {name} out")
    return _Text() if isinstance(step, values.Text) else _Bytes()


def _does_nothing_to_arrays(function: Any) -> bool:
    """Whether it is a transform of torchvision that silently leaves numpy's arrays unchanged.

    All do, except those that make images of arrays.
    """
    kind = type(function)
    if not kind.__module__.startswith("torchvision.transforms"):
        return False
    if kind.__name__ == "Compose" and function.transforms:
        return _does_nothing_to_arrays(function.transforms[0])
    return kind.__name__ not in ("ToImage", "ToPILImage", "ToTensor")
