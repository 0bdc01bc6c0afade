"""Exceptions.

A mistake in an argument is a `ValueError` or a `TypeError`, raised where the object is made.
Everything else that fails is a `BeladyError`:

- `SampleError`: a sample could not be read. It has `.sample` (its id) and `.path`.
- `DecodeError`, a `SampleError`: your `decode` raised. Its `__cause__` is your exception.
- `StalledError`: the source does not answer, or you hold all of the staging buffer.
- `WorkerError`: a worker process died.
- `NodeLostError`: the engine of this node's processes has ended. A `DataLoader` goes on with an
  engine of its own instead of raising it.

>>> import belady
>>> data = belady.open(photos)
>>> loader = belady.DataLoader(data, batch_size=4, decode=lambda sample, label: 1 / 0)
>>> try:
...     next(iter(loader))
... except belady.DecodeError as error:
...     print(error.sample, repr(error.__cause__))
0 ZeroDivisionError('division by zero')
"""

from __future__ import annotations

from ._native import BeladyError, NodeLostError, SampleError, StalledError

__all__ = [
    "BeladyError",
    "DecodeError",
    "NodeLostError",
    "SampleError",
    "StalledError",
    "WorkerError",
]


class DecodeError(SampleError):
    """`decode` raised on a sample; `.sample` is its id, `.path` its path."""

    def __init__(self, message: str, sample: int, path: str) -> None:
        super().__init__(message)
        self.sample = sample
        self.path = path

    def __reduce__(self) -> tuple[type[DecodeError], tuple[str, int, str]]:
        return DecodeError, (str(self), self.sample, self.path)


class StepError(Exception):
    """A step of a chain failed on a sample; becomes a `DecodeError`, which names the sample.

    The cause is the exception of a user's function, if one raised.
    """


class WorkerError(BeladyError):
    """A worker process died, or could not be started."""
