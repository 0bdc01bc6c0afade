#!/usr/bin/env python3
"""What a training loop on a GPU loses to whatever else the machine does, without any loader.

    python3 bench/gpu_contention.py          # about two minutes; torch and torchvision

ResNet-18 and SqueezeNet train on one batch that is in GPU memory. Beside them run: processes that only
compute, and nvJPEG, in a thread of the same process or in a process of its own. Those that compute are
processes, not threads: threads of Python would compete for its lock, which a native loader does not.
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

FOLDER = pathlib.Path("target/bench/images-512")
PERIOD = 0.02
MODELS = ("ResNet-18", "SqueezeNet 1.1")
#: A process that decodes has to import torch before it begins.
START = 8.0


def main() -> None:
    import photographs
    from harness import gpu_train

    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    photographs.make(FOLDER, 512)
    most = max(1, len(os.sched_getaffinity(0)) - 6)
    cases: list[tuple[str, list[list[str]], Callable[[Callable[[], bool]], None] | None]] = [
        ("nothing", [], None),
        (f"{most + 4} busy processes", [["busy"]] * (most + 4), None),
        ("nvJPEG in a thread", [], lambda stopped: decode(128, stopped, pinned=False)),
        ("nvJPEG in a thread, pinned", [], lambda stopped: decode(128, stopped, pinned=True)),
        (f"nvJPEG in a thread, {most} busy", [["busy"]] * most,
         lambda stopped: decode(128, stopped, pinned=False)),
        (f"nvJPEG in a thread, pinned, {most} busy", [["busy"]] * most,
         lambda stopped: decode(128, stopped, pinned=True)),
        ("nvJPEG in a process", [["decode"]], None),
        (f"nvJPEG in a process, {most} busy", [["busy"]] * most + [["decode"]], None),
    ]  # fmt: skip
    trainer = gpu_train.Trainer("cuda", 256, 3.0)
    for name, processes, thread in cases:
        figures = beside(processes, thread, lambda: [
            trainer.train(model, trainer.fixed_batch())["images_a_second"] for model in MODELS
        ])  # fmt: skip
        shown = ", ".join(f"{model} {figure:,.0f}" for model, figure in zip(MODELS, figures, strict=True))
        print(f"{name}: {shown} images/s", flush=True)


def beside(
    commands: list[list[str]], work: Callable[[Callable[[], bool]], None] | None, measure: Callable[[], list[float]]
) -> list[float]:
    """What is measured while others work."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop.is_set,)) if work else None
    running = [subprocess.Popen([sys.executable, __file__, *command]) for command in commands]
    try:
        if thread:
            thread.start()
        if ["decode"] in commands:
            time.sleep(START)
        return measure()
    finally:
        stop.set()
        if thread:
            thread.join()
        for process in running:
            process.kill()
            process.wait()


def decode(images: int, stopped: Callable[[], bool], *, pinned: bool) -> None:
    """So many images every 20 ms, which is what ResNet-18 needs of a GPU that decodes half of them."""
    import torch
    import torchvision

    paths = sorted(FOLDER.glob("*/*.jpg"))[:images]
    files = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in paths]
    if pinned:
        files = [file.pin_memory() for file in files]
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
    match sys.argv[1:]:
        case ["busy"]:
            compute()
        case ["decode"]:
            decode(128, lambda: False, pinned=True)
        case _:
            main()
