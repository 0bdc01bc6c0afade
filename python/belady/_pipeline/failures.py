"""Counts samples that could not be read or decoded.

A sample counts when its batch is delivered, not when the engine has read it ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .._configuration.loader_options import Options
from .._dataset.dataset import Dataset
from ..errors import BeladyError, DecodeError

log = logging.getLogger("belady")


class Failures:
    """The number of failures, the last one, and the limit."""

    def __init__(self, data: Dataset, options: Options) -> None:
        self._data = data
        self._allowed = None if options.on_error == "raise" else options.max_failures
        self._last = ""
        self.count = 0

    def undecoded(self, errors: Sequence[DecodeError]) -> None:
        """Counts samples on which `decode` raised."""
        for error in errors:
            log.warning("left out: %s", str(error).splitlines()[0])
            self._count(error.path)

    def unread(self, ordered: Sequence[int], delivered: Sequence[int]) -> None:
        """Counts the ordered samples of a batch that were not delivered."""
        there = set(delivered)
        for sample in ordered:
            if sample not in there:
                self._count(self._data.paths[sample])

    def _count(self, path: str) -> None:
        self.count += 1
        self._last = path

    def check(self) -> None:
        """Raises if there are more failures than `max_failures`."""
        if self._allowed is not None and self.count > self._allowed:
            raise BeladyError(
                f"{self.count} samples failed, and max_failures is {self._allowed}; the last "
                f"was {self._last}"
            )
