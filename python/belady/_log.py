"""Limits the rate of warnings.

The first lines of a warning are logged. Further ones are counted, and the count is logged with the
next line after an interval, or at the end of the program. The native module limits its own warnings
alike."""

from __future__ import annotations

import atexit
import logging
import time
from dataclasses import dataclass

from . import _native

#: Lines of one text that are logged as they come.
_BURST = 5
#: Seconds for which further ones are counted.
_INTERVAL = 30.0


@dataclass
class _Counts:
    since: float
    logged: int = 0
    suppressed: int = 0


class RateLimit(logging.Filter):
    """Suppresses repeated warnings. Lines with the same text before formatting are repetitions."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[int, str], _Counts] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is logged."""
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        counts = self._counts.setdefault((record.levelno, str(record.msg)), _Counts(now))
        if now - counts.since >= _INTERVAL:
            if counts.suppressed:
                seconds = now - counts.since
                record.msg = (
                    f"{record.msg} (and {counts.suppressed:,} more in the last {seconds:.0f} s)"
                )
                counts.since, counts.suppressed = now, 0
                return True
            counts.since, counts.logged = now, 0
        if counts.logged < _BURST:
            counts.logged += 1
            return True
        counts.suppressed += 1
        return False

    def finish(self, log: logging.Logger) -> None:
        """Logs the counts of suppressed lines at the end of the program."""
        # The counts themselves are not limited.
        log.removeFilter(self)
        for (level, text), counts in self._counts.items():
            if counts.suppressed:
                log.log(level, "%d more were not shown of: %s", counts.suppressed, text)
        self._counts.clear()


def limit(name: str) -> None:
    """Limits the warnings of a logger."""
    rate_limit = RateLimit()
    log = logging.getLogger(name)
    log.addFilter(rate_limit)
    _LIMITED.append((rate_limit, log))


_LIMITED: list[tuple[RateLimit, logging.Logger]] = []


# Registered before the exit handlers of modules that are imported later, so it runs after them.
@atexit.register
def _finish() -> None:
    for rate_limit, log in _LIMITED:
        rate_limit.finish(log)
    _native.finish_log()
