"""`make test` ends by saying which tests did not run, and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent.parent / "scripts" / "not_run.py"

SKIPS = """
import pytest

@pytest.mark.skipif(True, reason="no GPU")
def test_marked():
    raise AssertionError

@pytest.mark.parametrize("case", ["a", "b"])
def test_in_its_body(case):
    pytest.skip("no GPU")

@pytest.fixture
def mount():
    pytest.skip("no FUSE\\nat all")

def test_in_a_fixture(mount):
    raise AssertionError

def test_that_runs():
    pass

@pytest.mark.xfail
def test_that_fails_as_expected():
    raise AssertionError
"""
#: A file that needs what is not installed.
WHOLE = """
import pytest
pytest.importorskip("no_such_library", reason="no such library")
"""


def not_run(file: Path, *arguments: str) -> str:
    command = [sys.executable, SCRIPT, *arguments]
    env = os.environ | {"BELADY_TEST_NOT_RUN": str(file)}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def test_skipped_tests_are_named_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_whole.py").write_text(WHOLE)
    file = tmp_path / "not" / "run"
    not_run(file, "--begin")
    command = [sys.executable, "-m", "pytest", "-p", "not_run", "-p", "no:cacheprovider"]
    env = os.environ | {"BELADY_TEST_NOT_RUN": str(file), "PYTHONPATH": str(HERE)}
    subprocess.run([*command, "--rootdir", tmp_path, tmp_path], env=env, check=True)
    assert not_run(file) == (
        "not run: 5 tests\n"
        "  no FUSE at all (1)\n"
        "    test_skips.py::test_in_a_fixture\n"
        "  no GPU (3)\n"
        "    test_skips.py::test_in_its_body, 2 cases\n"
        "    test_skips.py::test_marked\n"
        "  no such library (1)\n"
        "    test_whole.py\n"
    )


def test_nothing_is_left_of_an_earlier_run(tmp_path: Path) -> None:
    file = tmp_path / "not-run"
    file.write_text("no GPU\ttest_old\n")
    not_run(file, "--begin")
    assert not_run(file) == "every test ran\n"


def test_ignored_tests_of_rust_count(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / SCRIPT.name).write_text(SCRIPT.read_text())
    (tmp_path / "crates").mkdir()
    (tmp_path / "crates" / "some.rs").write_text(
        '#[test]\n#[ignore = "takes an hour"]\nfn long() {}\n\n'
        "#[ignore]\n#[test]\nfn unexplained() {}\n\n#[test]\nfn runs() {}\n"
    )
    command = [sys.executable, scripts / SCRIPT.name]
    env = os.environ | {"BELADY_TEST_NOT_RUN": str(tmp_path / "none")}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert done.stdout == (
        "not run: 2 tests\n"
        "  ignored: no reason is given (1)\n"
        "    crates/some.rs: unexplained\n"
        "  ignored: takes an hour (1)\n"
        "    crates/some.rs: long\n"
    )
