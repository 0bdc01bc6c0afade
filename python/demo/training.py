"""The demo's training program: a small CNN on the CPU, fed by torch's DataLoader or by belady.

    python training.py FOLDER --loader torch --epochs 5
    python training.py FOLDER --loader belady --epochs 5 --cache 50MB

It is the same program but for the lines that make the loader, which stand in `torch_loader` and
`belady_loader`. It prints JSON: for each epoch its time, the time in which training waited for
its next batch, and what the source has given so far; and the loss of every batch, exactly.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

import images
from throttle import Link

BATCH = 32
WORKERS = 2
# Training has one core and loading the other, so that both are the same work for both loaders;
# and sums are made in one order, so that equal batches give equal losses.
TRAINING_THREADS = 1
# What torch's workers hold ahead is 4 batches; this is about 9.
STAGING = "8MB"


def decode(file: bytes | memoryview, label: int) -> tuple[torch.Tensor, int]:
    """From a file's bytes to what the network takes."""
    pixels = images.decode(file).transpose(2, 0, 1).astype(numpy.float32)
    return torch.from_numpy(pixels / 255 - 0.5), label


class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Files in a folder for each class, as torchvision's ImageFolder numbers them."""

    def __init__(self, folder: Path, link: Link | None) -> None:
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
        self.files = [
            (path, label) for label, each in enumerate(classes) for path in sorted(each.iterdir())
        ]
        self.link = link

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        data = path.read_bytes()
        if self.link is not None:
            self.link.carry(len(data))
        return decode(data, label)


def torch_loader(args: argparse.Namespace) -> tuple[Any, Callable[[], int]]:
    link = Link(args.throttle) if args.throttle else None
    data = Pictures(args.folder, link)
    generator = torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(
        data, batch_size=BATCH, drop_last=True, num_workers=WORKERS, persistent_workers=True,
        sampler=torch.utils.data.RandomSampler(data, generator=generator),
    )  # fmt: skip
    return loader, lambda: link.carried if link else 0


def belady_loader(args: argparse.Namespace) -> tuple[Any, Callable[[], int]]:
    import belady

    throttle = f"1:{args.throttle}B/s" if args.throttle else None
    data = belady.open(args.folder, snapshots=False, throttle=throttle)
    generator = torch.Generator().manual_seed(0)
    loader = belady.DataLoader(
        data, batch_size=BATCH, drop_last=True, epochs=args.epochs, decode=decode,
        sampler=torch.utils.data.RandomSampler(data, generator=generator),
        cache=[f"ram:{args.cache}"] if args.cache else [], staging=STAGING,
    )  # fmt: skip
    return loader, lambda: loader.stats()["engine"]["source"]["bytes"]


LOADERS = {"torch": torch_loader, "belady": belady_loader}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, images.CLASSES),
    )  # fmt: skip


def train(loader: Any, epochs: int, source_bytes: Callable[[], int], show: Progress) -> dict[str, Any]:
    """What every epoch took, and every loss."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    report: dict[str, Any] = {"epochs": [], "losses": []}
    for epoch in range(epochs):
        began = time.perf_counter()
        waited = 0.0
        batches = iter(loader)
        for number in range(1, len(loader) + 1):
            asked = time.perf_counter()
            pictures, labels = next(batches)
            waited += time.perf_counter() - asked
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report["losses"].append(loss.item())
            show.batch(epoch, number, len(loader), report["losses"][-1], waited)
        # Tells the loader that the epoch is over, as a `for` would.
        next(batches, None)
        seconds = time.perf_counter() - began
        report["epochs"].append(
            {"seconds": seconds, "waited": waited, "source_bytes": source_bytes()}
        )
        show.epoch(epoch, report)
    return report


class Progress:
    """A bar on a terminal; elsewhere a line for each epoch."""

    def __init__(self, name: str, epochs: int) -> None:
        self.name, self.epochs = name, epochs
        self.live = sys.stderr.isatty()

    def batch(self, epoch: int, number: int, batches: int, loss: float, waited: float) -> None:
        if self.live:
            bar = "#" * (24 * number // batches)
            text = f"epoch {epoch + 1}/{self.epochs} [{bar:<24}] loss {loss:.3f}, waited {waited:.2f} s"
            print(f"\r  {self.name:<8} {text}  ", end="", file=sys.stderr, flush=True)

    def epoch(self, epoch: int, report: dict[str, Any]) -> None:
        last, share = report["epochs"][-1], report["epochs"][-1]["waited"] / report["epochs"][-1]["seconds"]
        text = f"epoch {epoch + 1}/{self.epochs} {last['seconds']:6.2f} s, {share:5.1%} of it waiting for data"
        clear = "\r\033[K" if self.live else ""
        print(f"{clear}  {self.name:<8} {text}, loss {report['losses'][-1]:.3f}", file=sys.stderr, flush=True)


def arguments(given: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="pictures in a folder for each class")
    parser.add_argument("--loader", choices=LOADERS, default="belady")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cache", default="", help="RAM that belady may use, such as 50MB")
    parser.add_argument("--throttle", type=float, help="bytes a second, made slow in this program")
    parser.add_argument("--counter", type=Path, help="a file of slowfs that says what it gave")
    parser.add_argument("--name", help="what progress is called by")
    return parser.parse_args(None if given is None else list(given))


def main() -> None:
    args = arguments()
    torch.set_num_threads(TRAINING_THREADS)
    loader, own_count = LOADERS[args.loader](args)
    counter = (lambda: json.loads(args.counter.read_text())["bytes"]) if args.counter else own_count
    report = train(loader, args.epochs, counter, Progress(args.name or args.loader, args.epochs))
    if args.loader == "belady":
        loader.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
