"""Samples that could not be read or decoded, counted as they are delivered.

What the engine has read ahead does not count yet: the user has not come to it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .dataset import Dataset
from .errors import BeladyError, DecodeError
from .options import Options

log = logging.getLogger("belady")


class Failures:
    """How many, which was the last, and whether that is too many."""

    def __init__(self, data: Dataset, options: Options) -> None:
        self._data = data
        self._allowed = None if options.on_error == "raise" else options.max_failures
        self._last = ""
        self.count = 0

    def undecoded(self, errors: Sequence[DecodeError]) -> None:
        """`decode` raised on these."""
        for error in errors:
            log.warning("left out: %s", str(error).splitlines()[0])
            self._count(error.path)

    def unread(self, promised: Sequence[int], delivered: Sequence[int]) -> None:
        """A batch should have had these samples, and has those."""
        there = set(delivered)
        for sample in promised:
            if sample not in there:
                self._count(self._data.paths[sample])

    def _count(self, path: str) -> None:
        self.count += 1
        self._last = path

    def check(self) -> None:
        """Raises if the user does not put up with so many."""
        if self._allowed is not None and self.count > self._allowed:
            raise BeladyError(
                f"{self.count} samples failed, and max_failures is {self._allowed}; the last "
                f"was {self._last}"
            )
