#!/usr/bin/env python3
"""Training on a GPU: what a network does without any I/O, and what is left of it with a loader.

    python3 bench/gpu.py                                   # about six minutes on an H200 and 16 cores
    python3 bench/gpu.py --belady unpacked-wheel --json gpu.json
    python3 bench/gpu.py --device cpu --seconds 0 --batch 2 --images 40    # tries the program itself

It needs torch, torchvision, Pillow and numpy, and nothing that has to be installed: `--belady` is a
folder that the wheel was unpacked into (`pip install --target FOLDER --no-index --no-deps WHEEL`).
It makes its own JPEG files, once. bf16, channels_last, SGD, 224x224.

Every measurement is bounded in time. A loader that does not work here is named with its reason, and
the others go on. A target that is missed is printed as such and is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import photographs  # noqa: E402
from harness import gpu_loaders, gpu_train  # noqa: E402
from harness.table import Section, percent, verdict  # noqa: E402

# Model, loader, and which share of no I/O is to be reached.
TARGETS = {
    ("ResNet-50", "belady"): 0.97,
    ("ResNet-18", "belady-gpu"): 0.95,
    ("SqueezeNet 1.1", "belady-gpu"): 0.90,
}


def main() -> None:
    # For all loaders alike, and before CUDA is first used: see docs/performance.md.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    args = arguments()
    if args.belady:
        sys.path.insert(0, str(args.belady))
    trainer = gpu_train.Trainer(args.device, args.batch, args.seconds)
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    say(f"{args.images:,} images in {args.folder}")
    photographs.make(args.folder, args.images)
    found, failed = measure(trainer, args)
    section = table(found, failed)
    result = {"machine": machine(args.device), "batch": args.batch, "images": args.images,
              "seconds_each": args.seconds, "results": found, "failed": failed}  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    print(f"{result['machine']}, batch {args.batch}:\n\n{section.markdown()}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, help="of the images")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement, after its warm-up")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="or workers")
    parser.add_argument("--models", nargs="+", choices=gpu_train.MODELS, default=list(gpu_train.MODELS))
    parser.add_argument("--loaders", nargs="+", choices=gpu_loaders.LOADERS, default=list(gpu_loaders.LOADERS))
    parser.add_argument("--belady", type=pathlib.Path, help="where its wheel was unpacked, if not installed")
    parser.add_argument("--json", type=pathlib.Path, help="the figures go there too")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.images < args.batch:
        parser.error(f"--images must be at least a batch, {args.batch}")
    args.folder = args.folder or pathlib.Path(f"target/bench/images-{args.images}")
    return args


def measure(trainer: gpu_train.Trainer, args: argparse.Namespace) -> tuple[dict, dict]:
    """Images a second and the share of waiting, by loader and model; and what did not work, why."""
    found: dict[str, dict] = {}
    failed: dict[str, str] = {}
    # Before and after the others: the machine may have changed meanwhile.
    for name in ["none", *args.loaders, "none"]:
        began = time.monotonic()
        try:
            results = with_loader(trainer, name, args)
        except Exception as error:  # noqa: BLE001 - whatever it is, others are still measured
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            say(f"{name}: {failed[name]}")
            continue
        for model, result in results.items():
            known = found.setdefault(name, {}).get(model)
            if known is None or result["images_a_second"] > known["images_a_second"]:
                found[name][model] = result
        say(f"{name}: {time.monotonic() - began:.0f} s")
    return found, failed


def with_loader(trainer: gpu_train.Trainer, name: str, args: argparse.Namespace) -> dict:
    if name == "none":
        batches, close = trainer.fixed_batch(), lambda: None
    else:
        batches, close = gpu_loaders.LOADERS[name](args)
    try:
        results = {} if name == "none" else {"no training": trainer.drain(batches)}
        for model in args.models:
            results[model] = trainer.train(model, batches)
            say(f"  {model}: {results[model]['images_a_second']:,.0f} images/s")
        return results
    finally:
        close()


def table(found: dict, failed: dict) -> Section:
    section = Section(["model", "loader", "images/s", "of no I/O", "the GPU waits", ""])
    free = found.get("none", {})
    for model in ("no training", *gpu_train.MODELS):
        for name, results in found.items():
            if model not in results:
                continue
            result, best = results[model], free.get(model)
            share = result["images_a_second"] / best["images_a_second"] if best else None
            target = TARGETS.get((model, name))
            section.row(
                model, gpu_loaders.NAMES[name], f"{result['images_a_second']:,.0f}",
                percent(share) if share and name != "none" else "",
                percent(result["waits"]) if "waits" in result else "",
                verdict(share >= target, f"at least {target:.0%}") if share and target else "",
            )  # fmt: skip
    section.note(
        "No I/O: one batch in GPU memory, again and again; best of before and after the others. The GPU waits: "
        "time between the end of a step and the start of the next on the GPU, copies of batches that are not "
        "beside a step included. No training: batches into GPU memory and no further."
    )
    for name, reason in failed.items():
        section.note(f"Not measured: {gpu_loaders.NAMES[name]}. {reason}")
    return section


def machine(device: str) -> str:
    import torch

    gpu = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    cores = len(os.sched_getaffinity(0))
    return f"{gpu}, {cores} cores, Python {platform.python_version()}, torch {torch.__version__}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
