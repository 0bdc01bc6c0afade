"""What a training loop on a GPU loses to whatever else the machine does, without any loader.

ResNet-18 and SqueezeNet train on one batch that is in GPU memory. Beside them run: processes that only
compute, and nvJPEG, in a thread of the same process. Those that compute are processes, not threads:
threads of Python would compete for its lock, which a native loader does not.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

PERIOD = 0.02
IMAGES = 128
MODELS = ("ResNet-18", "SqueezeNet 1.1")


def cases() -> dict[str, tuple[int, bool]]:
    """How many processes compute, and whether nvJPEG decodes, by name."""
    most = max(1, len(os.sched_getaffinity(0)) - 6)
    return {
        "nothing": (0, False),
        f"{most + 4} busy processes": (most + 4, False),
        "nvJPEG in a thread": (0, True),
        f"nvJPEG in a thread, {most} busy processes": (most, True),
    }


def measure(trainer: Any, folder: pathlib.Path) -> dict[str, dict[str, float]]:
    """Images a second by case and model, once each."""
    found: dict[str, dict[str, float]] = {}
    for name, (busy, decodes) in cases().items():
        stop = threading.Event()
        thread = threading.Thread(target=decode, args=(folder, stop.is_set)) if decodes else None
        running = [subprocess.Popen([sys.executable, __file__]) for _ in range(busy)]
        try:
            if thread:
                thread.start()
            found[name] = {
                model: trainer.train(model, trainer.fixed_batch())["images_a_second"]
                for model in MODELS
            }
        finally:
            stop.set()
            if thread:
                thread.join()
            for process in running:
                process.kill()
                process.wait()
    return found


def decode(folder: pathlib.Path, stopped: Callable[[], bool]) -> None:
    """So many images every 20 ms, which is what ResNet-18 needs of a GPU that decodes half of them."""
    import torch
    import torchvision

    paths = sorted(folder.glob("*/*.jpg"))[:IMAGES]
    files = [
        torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).pin_memory()
        for path in paths
    ]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        while not stopped():
            began = time.monotonic()
            torchvision.io.decode_jpeg(files, mode=torchvision.io.ImageReadMode.RGB, device="cuda")
            stream.synchronize()
            time.sleep(max(0.0, PERIOD - (time.monotonic() - began)))


def compute() -> None:
    block = bytes(1 << 20)
    while True:
        hashlib.sha256(block).digest()


if __name__ == "__main__":
    compute()
