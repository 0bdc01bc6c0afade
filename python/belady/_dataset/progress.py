"""A progress bar for long listings, on standard error."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 30
#: Shorter listings show no bar.
_QUIET_SECONDS = 0.5
_REDRAW_SECONDS = 0.1


class Bar:
    """A bar that is called with the activity, the count, and the total (None if unknown)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._drawn = False
        self._next = time.monotonic() + _QUIET_SECONDS

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _REDRAW_SECONDS
        self._drawn = True
        self._stream.write("\r\x1b[K" + line(what, done, total))
        self._stream.flush()

    def close(self) -> None:
        """Removes the bar."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False


def line(what: str, done: int, total: int | None) -> str:
    """Returns one line of the bar.

    >>> line("indexing", 500, 1000)
    'indexing [###############               ] 500 of 1,000'
    >>> line("listing", 12345, None)
    'listing 12,345'
    """
    if not total:
        return f"{what} {done:,}"
    filled = min(_WIDTH, _WIDTH * done // total)
    return f"{what} [{'#' * filled:<{_WIDTH}}] {done:,} of {total:,}"


def wanted(progress: bool | None) -> Bar | None:
    """Returns a bar if `progress` is True, or by default on a terminal."""
    if progress is None:
        progress = sys.stderr is not None and sys.stderr.isatty()
    return Bar() if progress else None
