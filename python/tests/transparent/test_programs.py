"""Every program of docs/transparent.md: the same bytes, and from the second epoch on no file of the
source.

The kernel reports every open of a file of the source, by any process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from transparent.inside import PROGRAMS, files
from transparent.launching import Conversation, arguments, inside, report, wait_for_copies
from transparent.source_watch import SourceWatch


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_second_epoch_is_the_same_and_leaves_the_source_alone(
    name: str, dataset: Callable[[str], Path], level: Path, tmp_path: Path
) -> None:
    program = PROGRAMS[name]
    if missing := program.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    data = dataset(program.data)
    with SourceWatch(data) as watch:
        plain = inside(name, data, tmp_path / "scratch")
        with Conversation(plain) as alone:
            expected = alone.wait_for("epoch")
            alone.end()
        opened = watch.opened()
        assert opened, "it opens no file of the dataset"

        # By all their names: links lead to what was opened.
        used = [path for path in files(data) if str(path.resolve().relative_to(data)) in opened]
        written = tmp_path / "report.json"
        with Conversation(arguments(data, [level], plain, "--report-json", written)) as run:
            assert run.wait_for("epoch") == expected
            wait_for_copies(level, opened)
            run.wait_until_served(used, level)
            watch.opened()
            run.tell("again")
            assert run.wait_for("epoch") == expected
            assert not watch.opened(), "the source was read again"
            run.end()
    [held] = report(written)["levels"]
    assert held["used"]["opens"] >= len(opened)
    assert held["files"] >= len(opened)
