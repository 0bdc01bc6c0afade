"""Many epochs in a fresh process: what is there after the first of them is all that there is after
the last.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOADERS = Path(__file__).resolve().parent.parent.parent / "bench" / "loaders"

WARM_UP, EPOCHS = 500, 3_000
#: 349 bytes an epoch, and more than memory goes up and down by.
MOST = 1 << 20

PROGRAM = """
import json, os, sys
sys.path.insert(0, {loaders!r})
import belady
from tree import held

def counts():
    return [held().other, *(len(os.listdir("/proc/self/" + what)) for what in ("task", "fd"))]

loader = belady.DataLoader(
    belady.open({images!r}), batch_size=4, cache="ram:1MiB", staging="8MiB", num_threads=2, {arguments}
)
leaked, leak = [], {leak}
counts()  # The first look takes memory itself.
for epoch in range({warm_up} + {epochs}):
    if epoch == {warm_up}:
        before = counts()
    for batch in loader:
        pass
    leaked.append(b"x" * leak)
print(json.dumps([before, counts()]))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    numpy = pytest.importorskip("numpy")
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("images")
    for number in range(16):
        pixels = numpy.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=numpy.uint8)
        image.fromarray(pixels).save(root / f"{number}.jpg")
    return root


def counts(images: Path, arguments: str, leak: int = 0) -> list[list[int]]:
    """Bytes, threads and descriptors after the warm-up and at the end."""
    program = PROGRAM.format(
        loaders=str(LOADERS),
        images=str(images),
        arguments=arguments,
        leak=leak,
        warm_up=WARM_UP,
        epochs=EPOCHS,
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "arguments",
    [
        "shuffle=True, seed=0",
        "shuffle=True, seed=0, transform=belady.transforms.imagenet_train(32)",
        "shuffle=True, seed=0, decode=lambda sample, _: len(sample)",
        "sampler=list(range(15, -1, -1))",
    ],
)
def test_epochs_leave_no_memory_threads_or_descriptors_behind(images: Path, arguments: str) -> None:
    (before, *others), (after, *others_after) = counts(images, arguments)
    assert after - before < MOST
    assert others_after == others


def test_memory_that_each_epoch_leaves_behind_is_noticed(images: Path) -> None:
    (before, *_), (after, *_) = counts(images, "shuffle=True, seed=0", leak=1 << 10)
    assert after - before > MOST
