"""Limits the rate of warnings.

The first lines of a warning are logged. Further ones are counted, and the count is logged before
the next warning after an interval, or at the end of the program. The native module decides, for its
own warnings too."""

from __future__ import annotations

import atexit
import logging

from . import _native

#: The attribute of lines with counts, which are not limited themselves.
_IS_COUNT = "belady_is_count"


class RateLimit(logging.Filter):
    """Suppresses repeated warnings. Lines with the same text before formatting are repetitions."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log
        self._limiter = _native.LogLimiter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is logged."""
        if record.levelno < logging.WARNING or hasattr(record, _IS_COUNT):
            return True
        self._log_counts(self._limiter.counts())
        return self._limiter.admits(record.levelno, str(record.msg), record.getMessage())

    def finish(self) -> None:
        """Logs the counts of all suppressed lines, at the end of the program."""
        self._log_counts(self._limiter.counts(all=True))

    def _log_counts(self, lines: list[str]) -> None:
        for line in lines:
            self._log.warning("%s", line, extra={_IS_COUNT: True})


def limit(name: str) -> None:
    """Limits the warnings of a logger."""
    log = logging.getLogger(name)
    rate_limit = RateLimit(log)
    log.addFilter(rate_limit)
    _LIMITED.append(rate_limit)


_LIMITED: list[RateLimit] = []


# Registered before the exit handlers of modules that are imported later, so it runs after them.
@atexit.register
def _finish() -> None:
    for rate_limit in _LIMITED:
        rate_limit.finish()
    _native.finish_log()
