"""A training that is killed within an epoch, and resumes with the very next batch.

The first process saves a checkpoint after every batch and is killed without warning. The second
loads it. Together they see what one uninterrupted run sees, each sample once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import shapes

import belady


def loader_of(data: belady.Dataset) -> belady.DataLoader:
    return belady.DataLoader(data, batch_size=16, shuffle=True, seed=0, cache="ram:1MiB")


def train(path: str, checkpoint: Path, log: Path, killed_after: int | None) -> None:
    loader = loader_of(belady.open(path))
    if checkpoint.exists():
        loader.load_state_dict(json.loads(checkpoint.read_text()))
    steps = 0
    while loader.epoch < 2:
        for batch in loader:
            with log.open("a") as file:
                file.write(json.dumps(batch.ids) + "\n")
            fresh = checkpoint.with_suffix(".new")
            fresh.write_text(json.dumps(loader.state_dict()))
            fresh.rename(checkpoint)
            steps += 1
            if steps == killed_after:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    path, folder = str(shapes.make()), Path(tempfile.mkdtemp(prefix="belady-resume-"))
    again = [sys.executable, __file__, path, str(folder)]
    assert subprocess.run([*again, "7"], check=False).returncode == -signal.SIGKILL
    assert subprocess.run([*again, "9"], check=False).returncode == -signal.SIGKILL
    subprocess.run([*again, "0"], check=True)
    seen = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    straight = loader_of(belady.open(path))
    assert seen == [batch.ids for _ in range(2) for batch in straight]
    print(f"killed twice; all {len(seen)} batches came once, in order")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        root = Path(sys.argv[2])
        train(sys.argv[1], root / "checkpoint.json", root / "log", int(sys.argv[3]) or None)
    else:
        main()
