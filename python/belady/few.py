"""Few lines of one kind: the first ones of a warning are shown, the others are counted, and the count is
told with the next one that is shown, or at the end. So does the native side (`logging/few.rs`).
"""

from __future__ import annotations

import atexit
import logging
import time
from dataclasses import dataclass

from . import _native

#: Lines of a kind that are shown as they come.
_SHOWN = 5
#: Seconds for which the others are counted then.
_EVERY = 30.0


@dataclass
class _Kind:
    since: float
    shown: int = 0
    held_back: int = 0


class Few(logging.Filter):
    """Holds lines back that are too many. Lines of one text, before values are put in, are one kind."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is shown."""
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        kind = self._kinds.setdefault((record.levelno, str(record.msg)), _Kind(now))
        if now - kind.since >= _EVERY:
            if kind.held_back:
                seconds = now - kind.since
                record.msg = f"{record.msg} (and {kind.held_back:,} more in the last {seconds:.0f} s)"
                kind.since, kind.held_back = now, 0
                return True
            kind.since, kind.shown = now, 0
        if kind.shown < _SHOWN:
            kind.shown += 1
            return True
        kind.held_back += 1
        return False

    def finish(self, log: logging.Logger) -> None:
        """Tells what is held back: the program ends."""
        # The counts themselves are never too many.
        log.removeFilter(self)
        for (level, text), kind in self._kinds.items():
            if kind.held_back:
                log.log(level, "%d more were not shown of: %s", kind.held_back, text)
        self._kinds.clear()


def install(name: str) -> None:
    """Few lines of one kind from a logger, and from the native side."""
    few = Few()
    log = logging.getLogger(name)
    log.addFilter(few)
    _INSTALLED.append((few, log))


_INSTALLED: list[tuple[Few, logging.Logger]] = []


# Registered when this module is imported, before those that have something to end: it runs after them.
@atexit.register
def _finish() -> None:
    for few, log in _INSTALLED:
        few.finish(log)
    _native.finish_log()
