"""Records tests that pytest skips, for the last lines of `make test` (scripts/not_run.py)."""

from __future__ import annotations

import os

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A test that fails as expected has run.
    if report.skipped and not hasattr(report, "wasxfail"):
        record(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A whole file that cannot be imported here."""
    if report.skipped:
        record(report)


def record(report: pytest.TestReport | pytest.CollectReport) -> None:
    file = os.environ.get("BELADY_TEST_NOT_RUN")
    if file is None:
        return
    output = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = " ".join(output.removeprefix("Skipped: ").split())
    with open(file, "a") as lines:
        lines.write(f"{reason}\t{report.nodeid}\n")
