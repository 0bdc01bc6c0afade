"""`make demo` in small: all loaders give the same losses, with torch and without, and its page is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy
import pytest

DEMO = Path(__file__).resolve().parent.parent / "demo"


@pytest.mark.parametrize("torch", [True, False])
def test_the_demo_trains_alike_with_belady_and_its_baseline(torch: bool, tmp_path: Path) -> None:
    # Without a slow file system, which tests may not be able to mount.
    command = [sys.executable, DEMO, "--pictures", "160", "--epochs", "2", "--out", tmp_path]
    command += [] if torch else ["--no-torch"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("torch's DataLoader" if torch else "a plain reader") in done.stdout
    assert "10 of each, equal to the last bit" in done.stdout
    assert "speed-up" in done.stdout
    page = (tmp_path / "demo.html").read_text()
    assert page.count("<svg") == 3
    assert (tmp_path / "demo.svg").read_text().startswith("<svg")


def test_pictures_are_read_as_they_were_written() -> None:
    code = (
        "import sys, numpy, images; draw = numpy.random.default_rng(1); "
        "picture = images.picture(3, draw); "
        "sys.stdout.buffer.write(picture.tobytes() + images.decode(images.encode(picture)).tobytes())"
    )
    both = subprocess.run([sys.executable, "-c", code], cwd=DEMO, capture_output=True, check=True)
    written, read = numpy.split(numpy.frombuffer(both.stdout, numpy.uint8), 2)
    assert len(written) == 96 * 96 * 3
    assert (written == read).all()
