"""The slow section's measurement, with a torch DataLoader of two workers over ImageFolder as the program."""

import subprocess

from .process import ROOT, CommandFailed, run
from .table import Section, size
from .transparent import LOADERS
from .transparent_slow import EPOCHS, HEAD, add_rows, measure, notes

PICTURES = 3_000
# The environment of the benchmarks, or that of the tests.
PYTHONS = (ROOT / ".venv-bench" / "bin" / "python", ROOT / ".venv" / "bin" / "python")


def torch(context):
    python = find_python()
    data = context.folder / "transparent-pictures" / "data"
    data.parent.mkdir(exist_ok=True)
    run(context.commands, [python, ROOT / "python" / "demo" / "images.py", data, PICTURES])

    def program(folder, *options):
        return [
            python,
            LOADERS / "image_folder.py",
            folder,
            "--epochs",
            EPOCHS,
            "--workers",
            2,
            *options,
        ]

    found = measure(context, data, program)
    check(found)
    section = Section(HEAD)
    total = sum(file.stat().st_size for file in data.rglob("*.png"))
    add_rows(section, f"{PICTURES:,} PNG, {size(total)}", found)
    section.note("All pixels of all epochs of all runs have the same sum. " + notes(context))
    return section


def find_python():
    for python in PYTHONS:
        asked = [python, "-c", "import torch, torchvision"]
        if python.exists() and subprocess.run(asked, capture_output=True).returncode == 0:
            return python
    raise CommandFailed(
        "no environment has torch and torchvision: run `make bench-environment`, which makes one"
    )


def check(found):
    totals = {
        epoch["total"] for runs in found.values() for each in runs for epoch in each["epochs"]
    }
    if len(totals) != 1:
        raise CommandFailed(f"pictures of different runs differ: their sums are {sorted(totals)}")
