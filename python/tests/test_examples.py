"""Every example runs to its end."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
#: What examples share.
NOT_EXAMPLES = ("shapes", "pictures")
NEEDS = {
    "torch_single": "torch",
    "torch_ddp": "torch",
    "lightning_fit": "lightning",
    "accelerate_loop": "accelerate",
    "lightning_transforms": "lightning",
    "accelerate_transforms": "accelerate",
    "jax_train": "jax",
    "tensorflow_train": "tensorflow",
}


@pytest.mark.parametrize(
    "name", sorted(file.stem for file in EXAMPLES.glob("*.py") if file.stem not in NOT_EXAMPLES)
)
def test_example(name: str, tmp_path: Path) -> None:
    needed = NEEDS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
