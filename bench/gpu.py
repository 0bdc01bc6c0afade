#!/usr/bin/env python3
"""Training on a GPU: what a network does without any I/O, and what is left of it with a loader.

    python3 bench/gpu.py --belady unpacked-wheel --json gpu.json    # about eight minutes on an H200 and 16 cores
    python3 bench/gpu.py --from gpu.json --write-docs               # the tables into bench/METHODS.md, anywhere
    python3 bench/gpu.py --device cpu --seconds 0 --batch 2 --images 40 --runs 1    # tries the program itself

It makes both tables about a GPU: training with each loader, and what training loses to other work of the
machine without any loader. It needs torch, torchvision, Pillow and numpy, and nothing that has to be
installed: `--belady` is a folder that the wheel was unpacked into (`pip install --target FOLDER
--no-index --no-deps WHEEL`). It makes its own JPEG files, once. bf16, channels_last, SGD, 224x224.

Loaders run in turns, `--runs` times, each time anew. The figures are written after each of them, so that
a run that is cut short leaves what it has. Every measurement is bounded in time. A loader that does not
work here is named with its reason, and the others go on. A target that is missed is printed as such and
is no failure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import process, sections, table
from harness.table import Section, percent, spread, verdict, whole

MODELS = ("ResNet-50", "ResNet-18", "SqueezeNet 1.1", "AlexNet")
NAMES = {
    "none": "no I/O",
    "torch": "torch DataLoader, PIL",
    "torch-v2": "torch DataLoader, decode_jpeg and v2",
    "belady": "belady, decodes on the CPU",
    "belady-gpu": "belady, decodes on the GPU",
}
# Model, loader, and which share of no I/O is to be reached.
TARGETS = {
    ("ResNet-50", "belady"): 0.97,
    ("ResNet-18", "belady-gpu"): 0.95,
    ("SqueezeNet 1.1", "belady-gpu"): 0.90,
}
Result = dict[str, Any]


def main() -> None:
    # For all loaders alike, and before CUDA is first used: see docs/notes/gpu-decoding.md.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    args = arguments()
    result = json.loads(args.measured.read_text()) if args.measured else measure(args)
    if args.commit:
        result["commit"] = args.commit
    for name, (section, runs) in tables(result).items():
        text = f"{heading(result, runs)}\n\n{section.markdown()}"
        print(f"\n## {name}\n\n{text}", flush=True)
        if args.write_docs and runs < table.LEAST_RUNS:
            sys.exit(
                f"not written: a row of {name} has {runs} runs, of {table.LEAST_RUNS} that are asked for"
            )
        if args.write_docs:
            sections.write(name, text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, help="of the images")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--runs", type=int, default=table.LEAST_RUNS, help="of each loader")
    parser.add_argument(
        "--seconds", type=float, default=2, help="of each measurement, after its warm-up"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="or workers"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--loaders", nargs="+", choices=[name for name in NAMES if name != "none"],
                        default=[name for name in NAMES if name != "none"])  # fmt: skip
    parser.add_argument(
        "--belady", type=pathlib.Path, help="where its wheel was unpacked, if not installed"
    )
    parser.add_argument(
        "--commit", help="that the wheel was built from, in words; this checkout's if not given"
    )
    parser.add_argument("--json", type=pathlib.Path, help="the figures go there too")
    parser.add_argument(
        "--from",
        type=pathlib.Path,
        dest="measured",
        metavar="JSON",
        help="measure nothing: show these figures",
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="write the tables into bench/METHODS.md"
    )
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.images < args.batch:
        parser.error(f"--images must be at least a batch, {args.batch}")
    if args.runs < 1 or (args.write_docs and args.runs < table.LEAST_RUNS):
        parser.error(f"--runs must be at least 1, and {table.LEAST_RUNS} with --write-docs")
    args.folder = args.folder or pathlib.Path(f"target/bench/images-{args.images}")
    return args


def measure(args: argparse.Namespace) -> Result:
    """All figures: by loader, model and run; and what did not work, why."""
    import photographs
    from harness import gpu_contention, gpu_train

    if args.belady:
        sys.path.insert(0, str(args.belady))
    trainer = gpu_train.Trainer(args.device, args.batch, args.seconds)
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    say(f"{args.images:,} images in {args.folder}")
    photographs.make(args.folder, args.images)
    before = process.stolen()
    result: Result = {
        "command": f"bench/gpu.py --runs {args.runs} --seconds {args.seconds:g}", "machine": machine(args.device),
        "commit": args.commit or process.commit(), "date": datetime.date.today().isoformat(), "batch": args.batch,
        "images": args.images, "results": {}, "contention": {}, "failed": {}, "stolen": None,
    }  # fmt: skip
    for number in range(1, args.runs + 1):
        for name in ["none", *args.loaders]:
            began = time.monotonic()
            say(f"run {number} of {args.runs}: {name}")
            try:
                add(result["results"].setdefault(name, {}), with_loader(trainer, name, args))
            except Exception as error:
                result["failed"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
                say(f"{name}: {result['failed'][name]}")
            say(f"{name}: {time.monotonic() - began:.0f} s")
            keep(args, result, before)
    if args.device == "cuda":
        for number in range(1, args.runs + 1):
            say(f"run {number} of {args.runs}: without a loader, beside other work")
            for name, figures in gpu_contention.measure(trainer, args.folder).items():
                add(result["contention"].setdefault(name, {}), figures)
            keep(args, result, before)
    return result


def add(found: dict[str, list[Any]], figures: dict[str, Any]) -> None:
    for name, figure in figures.items():
        found.setdefault(name, []).append(figure)


def keep(args: argparse.Namespace, result: Result, before: tuple[int, int]) -> None:
    """Writes what there is so far."""
    stolen, all_of_it = (now - then for now, then in zip(process.stolen(), before, strict=True))
    result["stolen"] = stolen / max(1, all_of_it)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


def with_loader(trainer: Any, name: str, args: argparse.Namespace) -> dict[str, Any]:
    from harness import gpu_loaders

    batches, close = (
        gpu_loaders.LOADERS[name](args) if name != "none" else (trainer.fixed_batch(), lambda: None)
    )
    try:
        results = {} if name == "none" else {"no training": trainer.drain(batches)}
        for model in args.models:
            results[model] = trainer.train(model, batches)
            say(f"  {model}: {results[model]['images_a_second']:,.0f} images/s")
        return results
    finally:
        close()


def tables(result: Result) -> dict[str, tuple[Section, int]]:
    """The tables by the names of their places, each with the least number of runs of a row."""
    made = {"gpu": training(result)}
    if result["contention"]:
        made["gpu-contention"] = contention(result)
    return made


def heading(result: Result, runs: int) -> str:
    line = table.heading(
        f"python3 {result['command']}", runs, result["machine"], result["commit"], result["date"]
    )
    return (
        line.removesuffix(":")
        + f", batch {result['batch']}, bf16, channels_last, {result['images']:,} images:"
    )


def training(result: Result) -> tuple[Section, int]:
    found = result["results"]
    section = Section(["model", "loader", "images/s", "of no I/O", "the GPU waits", ""])
    free = found.get("none", {})
    runs = set()
    for model in ("no training", *MODELS):
        for name, results in found.items():
            if model not in results:
                continue
            speeds = [run["images_a_second"] for run in results[model]]
            runs.add(len(speeds))
            share = statistics.median(speeds) / statistics.median(
                run["images_a_second"] for run in free[model]
            ) if model in free else None  # fmt: skip
            target = TARGETS.get((model, name))
            waits = [run["waits"] for run in results[model] if "waits" in run]
            section.row(
                model, NAMES[name], spread(speeds, whole), percent(share) if share and name != "none" else "",
                spread(waits, percent) if waits else "",
                verdict(share >= target, f"at least {target:.0%}") if share and target else "",
            )  # fmt: skip
    section.note(
        "No I/O: one batch in GPU memory, again and again, in turns with the loaders. The GPU waits: "
        "time between the end of a step and the start of the next on the GPU, copies of batches that are not "
        "beside a step included. No training: batches into GPU memory and no further. `decode_jpeg and v2`: workers "
        "give uint8, which the GPU normalises. The host gave "
        f"{percent(result['stolen'])} of the processor's time to others."
    )
    for name, reason in result["failed"].items():
        section.note(f"Not measured, or not always: {NAMES[name]}. {reason}")
    return section, min(runs, default=0)


def contention(result: Result) -> tuple[Section, int]:
    found = result["contention"]
    models = list(next(iter(found.values())))
    section = Section(
        [
            "beside training",
            *(f"{model}, images/s" for model in models),
            *(f"{model}, of nothing" for model in models),
        ]
    )
    for name, figures in found.items():
        shares = [
            statistics.median(figures[model]) / statistics.median(found["nothing"][model])
            for model in models
        ]
        section.row(
            name, *(spread(figures[model], whole) for model in models), *map(percent, shares)
        )
    section.note(
        "Without any loader, one batch in GPU memory. nvJPEG decodes 128 images every 20 ms."
    )
    return section, min(len(values) for figures in found.values() for values in figures.values())


def machine(device: str) -> str:
    import torch

    gpu = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    return f"one {gpu} and {process.machine()}, Python {platform.python_version()}, torch {torch.__version__}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
