"""Builds the wheel: maturin builds the native module, cargo the `belady` program beside it.

pip uses it as the build backend (PEP 517); `-C build-args="--profile dev --features mpi"` is for both.
For a build by maturin itself, the program is put where maturin finds it by

    python3 scripts/wheel_backend.py [--profile dev] [--features mpi]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# With the features that the tests' build resolves to, so that nothing is compiled twice.
SELECTED = ["--workspace", "--exclude", "belady-python", "--bin", "belady"]
PROGRAM = ROOT / "python" / "data" / "scripts" / "belady"


def build_program(arguments: list[str]) -> None:
    """Builds the `belady` program and puts it among the scripts of the wheel.

    Of maturin's `arguments`, those that concern the program are used.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--profile", default="release")
    parser.add_argument("--features", default="", help="features of the native module")
    options, _ = parser.parse_known_args(arguments)
    command = [os.environ.get("CARGO", "cargo"), "build", *SELECTED, "--profile", options.profile]
    if "mpi" in options.features.split(","):
        command += ["--features", "belady/mpi"]
    command += ["--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    (program,) = [message["executable"] for message in messages if message.get("executable")]
    # A new file: the one before may be running.
    fresh = PROGRAM.with_suffix(".new")
    shutil.copy(program, fresh)
    fresh.replace(PROGRAM)


def build_wheel(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """Builds a wheel, as PEP 517 says."""
    build_program(maturin.get_maturin_pep517_args(settings))
    return maturin.build_wheel(directory, settings, metadata)


def build_editable(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """Builds a wheel for an editable installation, as PEP 660 says."""
    build_program(maturin.get_maturin_pep517_args(settings))
    return maturin.build_editable(directory, settings, metadata)


# maturin refuses to do anything where it is missing.
PROGRAM.parent.mkdir(parents=True, exist_ok=True)

if __name__ == "__main__":
    build_program(sys.argv[1:])
else:
    import maturin
    from maturin import (  # noqa: F401 (pip asks this module for them)
        build_sdist,
        get_requires_for_build_editable,
        get_requires_for_build_sdist,
        get_requires_for_build_wheel,
        prepare_metadata_for_build_editable,
        prepare_metadata_for_build_wheel,
    )
