"""The demo's training program: a small CNN on the CPU, fed by belady or by a baseline.

    python training.py FOLDER --loader torch --epochs 5
    python training.py FOLDER --loader belady --epochs 5 --cache 50MB

With torch the network and the baseline are torch's (with_torch.py). Without it both take a few lines
of NumPy (with_numpy.py), and the baseline is called `plain`. Only the lines that make the loader differ.
It prints JSON: for each epoch its time, the time in which training waited for its next batch, and the
bytes that the source has given so far; and the loss of every batch, exactly.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# One thread trains and the others load, so that both are the same work for every loader; and sums are
# made in one order, so that equal batches give equal losses. NumPy's libraries read it when they start.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

HAS_TORCH = importlib.util.find_spec("torch") is not None


def train(
    loader: Any,
    step: Callable[[Any, Any], float],
    epochs: int,
    source_bytes: Callable[[], int],
    show: Progress,
) -> dict[str, Any]:
    """Returns the figures of every epoch, and every loss."""
    report: dict[str, Any] = {"epochs": [], "losses": []}
    for epoch in range(epochs):
        began = time.perf_counter()
        waited = 0.0
        batches = iter(loader)
        for number in range(1, len(loader) + 1):
            asked = time.perf_counter()
            pictures, labels = next(batches)
            waited += time.perf_counter() - asked
            report["losses"].append(step(pictures, labels))
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
            state = f"[{bar:<24}] loss {loss:.3f}, waited {waited:.2f} s"
            text = f"epoch {epoch + 1}/{self.epochs} {state}"
            print(f"\r  {self.name:<8} {text}  ", end="", file=sys.stderr, flush=True)

    def epoch(self, epoch: int, report: dict[str, Any]) -> None:
        last = report["epochs"][-1]
        share = last["waited"] / last["seconds"]
        took = f"{last['seconds']:6.2f} s, {share:5.1%} of it waiting for data"
        text = f"epoch {epoch + 1}/{self.epochs} {took}, loss {report['losses'][-1]:.3f}"
        clear = "\r\033[K" if self.live else ""
        print(f"{clear}  {self.name:<8} {text}", file=sys.stderr, flush=True)


def arguments(given: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="pictures in a folder for each class")
    parser.add_argument("--loader", choices=("torch", "plain", "belady"), default="belady")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cache", default="", help="RAM that belady may use, such as 50MB")
    parser.add_argument("--throttle", type=float, help="bytes a second, limited in this program")
    parser.add_argument("--counter", type=Path, help="a file of slowfs with its counters")
    parser.add_argument("--name", help="the name before each line of progress")
    parser.add_argument(
        "--no-torch", action="store_true", help="do without torch even if it is installed"
    )
    return parser.parse_args(None if given is None else list(given))


def main() -> None:
    args = arguments()
    if args.loader == "torch" or (HAS_TORCH and args.loader == "belady" and not args.no_torch):
        import with_torch as library
    else:
        import with_numpy as library  # type: ignore[no-redef]
    loader, own_count = library.LOADERS[args.loader](args)
    counter = (lambda: json.loads(args.counter.read_text())["bytes"]) if args.counter else own_count
    show = Progress(args.name or args.loader, args.epochs)
    report = train(loader, library.Network().step, args.epochs, counter, show)
    if args.loader == "belady":
        loader.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
