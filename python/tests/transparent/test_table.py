"""The table in docs/transparent.md names the programs that are run here, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from transparent.inside import PROGRAMS

DOCUMENT = Path(__file__).parents[3] / "docs" / "transparent.md"


def rows() -> list[list[str]]:
    """Of the table of programs: the one whose first column is `program`."""
    table = re.search(
        r"^\| program \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", DOCUMENT.read_text(), re.MULTILINE
    )
    assert table is not None
    lines = table[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_and_the_suite_name_the_same_programs() -> None:
    named = [cell.replace("`", "") for row in rows() for cell in row[0].split("; ")]
    assert sorted(named) == sorted(PROGRAMS)


def test_every_row_says_what_was_seen() -> None:
    for program, symbols, same, cached in rows():
        assert symbols, program
        assert same in ("yes", "not run"), program
        assert cached.startswith(("yes", "not run")), program
