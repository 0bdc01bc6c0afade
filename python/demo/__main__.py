"""The same training from a slow source, with a baseline and with belady.

    make demo

The demo makes a dataset of small pictures and measures how fast this machine trains on it with all files
at hand. It then puts the files behind a source of less than half that rate: a file system that is slow
for every reader or, where none can be mounted, a limit within the programs. The baseline runs first, then
belady with room for 60 % of the dataset. The baseline is torch's DataLoader, or a plain reader where
torch is not installed. In between the baseline runs once more, with a page cache in as much memory as
belady has, where the user may make a memory cgroup. All runs have the same order and so the same losses,
to the last bit. They differ in the time that training waits, and in the bytes that the source gives. The
demo prints a table and writes plots to out/demo.html.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "bench")]

import images  # noqa: E402
import page  # noqa: E402
import report  # noqa: E402
import settings  # noqa: E402
from harness.cgroup import MemoryGroup, NoCgroup  # noqa: E402
from harness.mount import Mount  # noqa: E402
from harness.process import CommandFailed, Commands  # noqa: E402

CACHED = 0.6
# How much longer reading all from the source takes than training. With 60 % cached the rest is
# then read in 0.88 of the time that training takes.
SLOWER = 2.2
FUSE = "a FUSE file system"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=2_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--slowfs", type=Path, help="the binary of the slow file system")
    parser.add_argument(
        "--no-torch", action="store_true", help="do without torch even if it is installed"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out")
    args = parser.parse_args()
    if args.epochs < 2 or args.pictures < images.CLASSES * 4:
        parser.error(f"it takes two epochs and {images.CLASSES * 4} pictures to see a difference")
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        demo(args)
    except CommandFailed as error:
        sys.exit(f"demo: {error}")


@dataclass(frozen=True)
class Baseline:
    """What belady is compared with."""

    loader: str  # of training.py
    options: tuple[str, ...]
    short: str
    long: str


TORCH = Baseline("torch", (), "torch", "torch's DataLoader, 2 workers")
PLAIN = Baseline(
    "plain", ("--no-torch",), "plain reader", "a plain reader, 2 threads that read ahead"
)


def demo(args: argparse.Namespace) -> None:
    baseline = PLAIN if args.no_torch or importlib.util.find_spec("torch") is None else TORCH
    if baseline is PLAIN:
        say("== Without torch: belady is compared with a plain reader, and NumPy trains")
    folder = args.out / "demo-pictures"
    say(f"== {args.pictures:,} pictures of {images.SIDE} x {images.SIDE}, made in {shown(folder)}")
    images.make(folder, args.pictures)
    total = sum(path.stat().st_size for path in folder.rglob("*.png"))
    say(f"== How fast this machine trains with all {total / 1e6:.0f} MB at hand")
    quick = training(baseline, baseline.loader, folder, 2, "--name", "at hand")
    # The better one, as a busy neighbour can only add to it.
    at_hand = min(epoch["seconds"] for epoch in quick["epochs"])
    rate = total / at_hand / SLOWER
    cache = int(CACHED * total)
    found = report.Found(total, cache, rate, at_hand, baseline.short)
    with slow(folder, rate, args.slowfs) as (place, options, how):
        found.how = how
        say(f"== {baseline.long}, from a source of {rate / 1e6:.1f} MB/s ({how})")
        found.baseline, used = measured(baseline, place, args.epochs, *options)
    if used and how == FUSE:
        limit = used + cache + settings.STAGING_BYTES
        say(
            f"== {baseline.short} with page cache, in {limit / 1e6:.0f} MB: its own memory and as much as belady has"
        )
        found.pages = with_pages(baseline, args, folder, rate, limit)
    else:
        say(
            f"   {baseline.short} with page cache is not measured: that needs root, FUSE and a memory cgroup"
        )
    with slow(folder, rate, args.slowfs) as (place, options, how):
        say(f"== belady, the same source, a cache of {cache / 1e6:.0f} MB in RAM ({CACHED:.0%})")
        found.belady = training(
            baseline, "belady", place, args.epochs, *options, "--cache", f"{cache}B"
        )
    say("")
    say(report.table(found))
    for name, text in (("demo.html", page.html(found)), ("demo.svg", page.picture(found))):
        (args.out / name).write_text(text)
    say(f"\nOpen {shown(args.out / 'demo.html')} in a browser for the plots.")
    if any(run["losses"] != found.belady["losses"] for run in found.runs.values()):
        sys.exit("demo: the loss curves differ, which they must not")


def measured(
    baseline: Baseline, folder: Path, epochs: int, *options: str
) -> tuple[dict[str, Any], int]:
    """Runs the baseline; returns its report and the bytes that its processes held, or 0 if unknown."""
    try:
        with MemoryGroup(Commands()) as group:
            run = training(baseline, baseline.loader, folder, epochs, *options, inside=group.inside)
            return run, group.held.used
    except NoCgroup:
        return training(baseline, baseline.loader, folder, epochs, *options), 0


def with_pages(
    baseline: Baseline, args: argparse.Namespace, folder: Path, rate: float, limit: int
) -> dict[str, Any]:
    """Runs the baseline with the kernel's pages for it, within a limit."""
    with slow(folder, rate, args.slowfs, "--page-cache") as (place, options, _):
        with MemoryGroup(Commands(), limit) as group:
            return training(
                baseline, baseline.loader, place, args.epochs, *options, inside=group.inside
            )


def training(
    baseline: Baseline,
    loader: str,
    folder: Path,
    epochs: int,
    *options: str,
    inside: Sequence[Any] = (),
) -> dict[str, Any]:
    """Runs the program that trains, whose progress goes to the terminal."""
    command = [sys.executable, HERE / "training.py", folder, "--loader", loader, "--epochs", epochs]
    text = [str(part) for part in (*inside, *command, *baseline.options, *options)]
    done = subprocess.run(text, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise CommandFailed(f"training with {loader} failed (see above)")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def slow(
    folder: Path, rate: float, slowfs: Path | None, *how: str
) -> Iterator[tuple[Path, list[str], str]]:
    """The same folder at `rate`: where, options for the training program, and how in words."""
    try:
        if slowfs is None or not Path("/dev/fuse").exists():
            raise CommandFailed("this machine has no FUSE")
        mount = Mount(Commands(), slowfs, folder, {1: f"{rate / 1e6:.3f}"}, *how)
        mounted = mount.__enter__()
    except CommandFailed as error:
        say(f"   no slow file system can be mounted ({error}); the programs limit their own rate")
        yield folder, ["--throttle", str(rate)], "within the program"
        return
    try:
        yield mounted.path, ["--counter", str(mounted.path / ".slowfs-stats")], FUSE
    finally:
        mount.__exit__()


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
