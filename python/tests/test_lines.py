"""`scripts/lines.py`, which counts lines of code."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import lines  # type: ignore[import-not-found]  # noqa: E402

RUST = """//! A module.

/// A kind, one of which only tests have.
enum Kind {
    Usual, // a comment behind code
    #[cfg(test)]
    Odd,
}

/* a comment
   of two lines */
const TEXT: &str = "two // no comment
lines";

#[cfg(test)]
mod tests {
    #[test]
    fn counts() {}
}
"""


def test_comments_and_tests_are_no_code() -> None:
    main, tests = lines.rust_lines(RUST)
    assert main == len(["enum", "Usual", "}", "TEXT", "lines"])
    assert tests == len(["cfg", "Odd", "cfg", "mod", "test", "fn", "}"])


PYTHON = '''"""A module."""

# A comment.
import os

def name() -> str:
    """Returns a name.

    It has two lines."""
    return """one
two"""  # behind code
'''


def test_documentation_is_no_code() -> None:
    assert lines.python_lines(PYTHON) == len(["import", "def", "return", "two"])
