#!/usr/bin/env python3
"""Two builds of belady, side by side in one run: whether a change of structure cost speed.

    python3 bench/before_after.py BEFORE AFTER --runs 5

BEFORE and AFTER are directories with the release build of a commit: the programs `belady` and
`ram_speed` (`cargo build --release -p belady`, `-p belady-engine --example ram_speed`), and, for the
images, the Python package as `py/belady` with its native module inside. Both builds run in turns, so
that a busy neighbour meets both. Judged is the work done in a second of processor time, of all
threads: the median of AFTER divided by that of BEFORE in the same turn, with the least and the
greatest. Above 1 is faster.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# A process of its own for each build, since a native module stays loaded.
IMAGES = """
import json, sys, time
import belady
from belady import transforms as t
folder, epochs = sys.argv[1], 3
steps = [t.Decode(), t.RandomResizedCrop(224), t.RandomHorizontalFlip(), t.ToTensor(),
         t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
with belady.DataLoader(belady.open(folder), batch_size=64, shuffle=True, seed=0, epochs=epochs + 1,
                       cache=["ram:1GiB"], transform=steps, num_threads=2) as loader:
    images = sum(len(batch[0]) for _ in range(1) for batch in loader)
    before, images = time.process_time(), 0
    for _ in range(epochs):
        for batch in loader:
            images += len(batch[0])
    print(json.dumps({"work": images, "cpu": time.process_time() - before}))
"""


def output(command, **how):
    finished = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, **how
    )
    if finished.returncode:
        sys.exit(f"before_after: {command[0]} failed: {finished.stderr.strip()}")
    return finished.stdout


def measured(command, work):
    """Work for each second of processor time of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output(command, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return work / (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def ram(size, mode):
    def one(build, _):
        command = [build / "ram_speed", "--size", f"{size}B", "--threads", 2, "--mode", mode]
        found = json.loads(output(command))
        return found["samples"] / found["cpu_seconds"]

    return one


def page_cache(build, data):
    command = [build / "belady", "read", data / "files", "--format", "flat", "--batch", 64]
    command += ["--epochs", EPOCHS, "--threads", 2, "--staging", "64MiB", "--json"]
    return measured(command, EPOCHS * FILES)


def images(build, data):
    command = [sys.executable, "-c", IMAGES, data / "images"]
    found = json.loads(output(command, env={**os.environ, "PYTHONPATH": str(build / "py")}))
    return found["work"] / found["cpu"]


def simulate(policy):
    def one(build, _):
        command = [build / "belady", "simulate", "scenarios/hdmlp-4.toml", "--policy", policy]
        return measured(command, 1)

    return one


FILES, SIZE, EPOCHS, PICTURES = 4_000, 110_000, 20, 600
SECTIONS = {
    "RAM tier, 110 KB, copied": ram(110_000, "copy"),
    "RAM tier, 1 KB, copied": ram(1_000, "copy"),
    "RAM tier, 1 KB, lent": ram(1_000, "lend"),
    "page cache, 110 KB": page_cache,
    "images, JPEG to batch": images,
    "simulator, belady": simulate("belady"),
    "simulator, nopfs": simulate("nopfs"),
}


def make_data(folder):
    """Random files, and photographs of random blocks."""
    draw = random.Random(1)
    (folder / "files").mkdir()
    for number in range(FILES):
        (folder / "files" / f"{number:05}.bin").write_bytes(draw.randbytes(SIZE))
    (folder / "images" / "class").mkdir(parents=True)
    try:
        from PIL import Image
    except ImportError:
        return
    for number in range(PICTURES):
        small = Image.frombytes("RGB", (125, 94), draw.randbytes(125 * 94 * 3))
        picture = small.resize((500, 375), Image.Resampling.BICUBIC)
        picture.save(folder / "images" / "class" / f"{number:05}.jpg", quality=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=5, help="turns of each section")
    args = parser.parse_args()
    builds = [args.before.resolve(), args.after.resolve()]
    print("| what | after / before, CPU | least to greatest | before, per CPU-s | runs |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder)
        make_data(data)
        for name, section in SECTIONS.items():
            if section is images and not any((data / "images" / "class").iterdir()):
                print(f"| {name} | not measured: no Pillow | | | |")
                continue
            turns = []
            for turn in range(args.runs):
                # The first of a turn warms the caches of the second: they change places.
                order = builds if turn % 2 == 0 else builds[::-1]
                found = {build: section(build, data) for build in order}
                turns.append([found[build] for build in builds])
            ratios = [after / before for before, after in turns]
            rate = statistics.median(before for before, _ in turns)
            print(
                f"| {name} | {statistics.median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} "
                f"| {rate:,.4g} | {args.runs} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
