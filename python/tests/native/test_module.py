"""The module itself: its stubs, its command, its independence."""

import subprocess
import sys
from pathlib import Path

import pytest

from belady import _native


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)


def test_the_stubs_say_what_the_module_has(tmp_path: Path) -> None:
    # Python 3.11 has buffers, but no name for them that Python code could see.
    unseen = [rf"belady\._native\.{name}\.__buffer__" for name in ("Array", "Sample", "Stacked")]
    (tmp_path / "unseen").write_text("\n".join(unseen))
    options = ["--allowlist", str(tmp_path / "unseen"), "--ignore-unused-allowlist"]
    checked = run("-m", "mypy.stubtest", *options, "belady._native")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_name_is_documented() -> None:
    for name in dir(_native):
        if not name.startswith("__"):
            assert getattr(_native, name).__doc__, name


def test_the_package_needs_no_other_package() -> None:
    code = (
        "import sys; from belady import _native; "
        "print(*({'torch', 'numpy', 'jax', 'tensorflow'} & set(sys.modules)))"
    )
    assert run("-c", code).stdout.strip() == ""


def test_the_command_is_in_the_wheel(tmp_path: Path) -> None:
    version = run("-m", "belady", "--version")
    assert version.stdout == f"belady {_native.__version__}\n"
    assert run("-m", "belady", "--help").returncode == 0
    missing = run("-m", "belady", "ls", str(tmp_path / "nowhere"))
    assert missing.returncode == 2 and "there is no dataset" in missing.stderr


def test_classes_cannot_be_made_by_hand() -> None:
    for name in (
        "Batch",
        "Sample",
        "Stacked",
        "Loader",
        "View",
        "Dataset",
        "Orders",
        "Array",
        "OutputBatch",
    ):
        with pytest.raises(TypeError):
            getattr(_native, name)()
