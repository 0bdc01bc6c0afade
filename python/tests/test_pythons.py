"""How the tests are run with several Pythons: which are found, and which packages each gets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import python_env  # type: ignore[import-not-found]  # noqa: E402
import pythons  # type: ignore[import-not-found]  # noqa: E402

LIST = """# Two lines are not for all.
a==1
b==2; python_version < "3.14"
b==3; python_version >= "3.14"
c==4
"""


def test_a_line_for_another_python_keeps_the_environment() -> None:
    assert python_env.applicable(LIST, 11) == "# Two lines are not for all.\na==1\nb==2\nc==4\n"
    assert python_env.applicable(LIST, 14) == "# Two lines are not for all.\na==1\nb==3\nc==4\n"


def test_every_marker_in_the_lists_is_one_that_is_understood() -> None:
    for file in (ROOT / "python").glob("requirements-*.txt"):
        for minor in (11, 14):
            lines = python_env.applicable(file.read_text(), minor).splitlines()
            assert not [line for line in lines if ";" in line and not line.startswith("#")], file


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_does_not_run_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "bin" / "python3.12", "echo 'command not found' >&2; exit 127")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert pythons.find("3.12") is None
    works = executable(tmp_path / "pyenv" / "versions" / "3.12.9" / "bin" / "python", "echo 3.12")
    assert pythons.find("3.12") == works
    assert pythons.find(str(works)) == works
    assert pythons.find(str(tmp_path / "none" / "python")) is None
