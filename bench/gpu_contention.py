#!/usr/bin/env python3
"""What a training loop on a GPU loses to whatever else the processor does, without any loader.

    python3 bench/gpu_contention.py          # about a minute and a half; torch and torchvision

ResNet-18 trains on one batch that is in GPU memory, and beside it run: threads that only compute,
copies to the GPU, Python code, and nvJPEG.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import photographs  # noqa: E402
import torch  # noqa: E402
import torchvision  # noqa: E402
from harness import gpu_train  # noqa: E402

FOLDER = pathlib.Path("target/bench/images-512")
PERIOD = 0.02
STOP = threading.Event()


def main() -> None:
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    photographs.make(FOLDER, 512)
    files = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
             for path in sorted(FOLDER.glob("*/*.jpg"))[:256]]  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    few = max(1, cores - 2)
    beside: dict[str, list[Callable[[], None]]] = {
        "nothing": [],
        "nvJPEG, 64 images every 20 ms": [lambda: decode(files[:64])],
        "nvJPEG, 128 images every 20 ms": [lambda: decode(files[:128])],
        f"{cores} busy threads": [lambda: compute(0)] * cores,
        f"{cores} busy threads, nice 5": [lambda: compute(5)] * cores,
        f"{few} busy threads, nice 5": [lambda: compute(5)] * few,
        "24 MB pinned every 20 ms": [lambda: copy(24, pinned=True)],
        "7 MB pageable every 20 ms": [lambda: copy(7, pinned=False)],
        "3 ms of Python every 20 ms": [python],
        f"{few} busy threads, nice 5, and nvJPEG, 64": [lambda: compute(5)] * few + [lambda: decode(files[:64])],
    }  # fmt: skip
    trainer = gpu_train.Trainer("cuda", 256, 3.0)
    for name, work in beside.items():
        STOP.clear()
        threads = [threading.Thread(target=one) for one in work]
        for thread in threads:
            thread.start()
        result = trainer.train("ResNet-18", trainer.fixed_batch())
        STOP.set()
        for thread in threads:
            thread.join()
        print(f"{name}: {result['images_a_second']:,.0f} images/s", flush=True)


def decode(files: list[torch.Tensor]) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        every_period(lambda: torchvision.io.decode_jpeg(
            files, mode=torchvision.io.ImageReadMode.RGB, device="cuda"))  # fmt: skip


def compute(nice: int) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    block = bytes(1 << 20)
    while not STOP.is_set():
        hashlib.sha256(block).digest()


def copy(megabytes: int, *, pinned: bool) -> None:
    stream = torch.cuda.Stream()
    here = torch.empty(megabytes << 20, dtype=torch.uint8, pin_memory=pinned)
    there = torch.empty_like(here, device="cuda")

    def once() -> None:
        there.copy_(here, non_blocking=True)
        stream.synchronize()

    with torch.cuda.stream(stream):
        every_period(once)


def python() -> None:
    def once() -> None:
        began = time.monotonic()
        while time.monotonic() - began < 0.003:
            pass

    every_period(once)


def every_period(work: Callable[[], object]) -> None:
    while not STOP.is_set():
        began = time.monotonic()
        work()
        time.sleep(max(0.0, PERIOD - (time.monotonic() - began)))


if __name__ == "__main__":
    main()
