"""A torch DataLoader over torchvision's ImageFolder, as it is usually written: times as JSON.

    python image_folder.py FOLDER --epochs 4 --workers 2

`--counter` and `--gate` are those of `baselines pread-pool`: a file with counters that is shown as it was when
an epoch began and ended, and a folder in which the program waits after the first epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torchvision import datasets, transforms  # type: ignore[import-untyped]

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--counter", type=Path)
    parser.add_argument("--gate", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = datasets.ImageFolder(args.folder, transform=transforms.ToTensor())
    generator = torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(
        data, batch_size=BATCH, shuffle=True, num_workers=args.workers, generator=generator
    )
    epochs = []
    for number in range(args.epochs):
        if number == 1 and args.gate:
            wait_at(args.gate)
        before = counters(args.counter)
        start = time.perf_counter()
        # A sum of all pixels: pictures that came wrong would show.
        total = sum(float(batch.double().sum()) + int(labels.sum()) for batch, labels in loader)
        epoch = {"epoch": number, "seconds": time.perf_counter() - start, "total": round(total, 3)}
        if args.counter:
            epoch["counters"] = [before, counters(args.counter)]
        epochs.append(epoch)
    print(json.dumps({"epochs": epochs}))


def counters(path: Path | None) -> object:
    return json.loads(path.read_text()) if path else None


def wait_at(gate: Path) -> None:
    (gate / "reached").touch()
    while not (gate / "open").exists():
        time.sleep(0.005)


if __name__ == "__main__":
    main()
