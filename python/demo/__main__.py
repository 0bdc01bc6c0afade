"""The same training from a slow source, with torch's DataLoader and with belady.

    make demo

It makes a dataset of small pictures, sees how fast this machine trains on it with all files at
hand, and then puts the files behind a source that gives less than half of that: a file system
that is slow for everybody who reads from it. Where none can be mounted, the programs make
themselves slow. torch's DataLoader runs first, then belady with room for 60 % of the dataset. In
between torch's DataLoader runs once more, with a page cache: its processes and the kernel's pages for
them in a memory cgroup of as much as belady has, where root may make one. All get the same order, so all
have the same losses, to the last bit; what differs is the time training waits and what the source has to
give. A table, and the plots in out/demo.html.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "bench")]

import images  # noqa: E402
import page  # noqa: E402
import report  # noqa: E402
from harness.cgroup import MemoryGroup, NoCgroup  # noqa: E402
from harness.mount import Mount  # noqa: E402
from harness.process import CommandFailed, Commands  # noqa: E402

CACHED = 0.6
# How much longer reading all from the source takes than training. With 60 % cached the rest is
# then read in 0.88 of the time that training takes.
SLOWER = 2.2
# Of belady, as the training program has it.
STAGING = 8_000_000
FUSE = "a FUSE file system"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=2_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--slowfs", type=Path, help="the binary of the slow file system")
    parser.add_argument("--out", type=Path, default=ROOT / "out")
    args = parser.parse_args()
    if args.epochs < 2 or args.pictures < images.CLASSES * 4:
        parser.error(f"it takes two epochs and {images.CLASSES * 4} pictures to see a difference")
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        demo(args)
    except CommandFailed as error:
        sys.exit(f"demo: {error}")


def demo(args: argparse.Namespace) -> None:
    folder = args.out / "demo-pictures"
    say(f"== {args.pictures:,} pictures of {images.SIDE} x {images.SIDE}, made in {shown(folder)}")
    images.make(folder, args.pictures)
    total = sum(path.stat().st_size for path in folder.rglob("*.png"))
    say(f"== How fast this machine trains with all {total / 1e6:.0f} MB at hand")
    quick = training(folder, "torch", 2, "--name", "at hand")
    # The better one, as a busy neighbour can only add to it.
    at_hand = min(epoch["seconds"] for epoch in quick["epochs"])
    rate = total / at_hand / SLOWER
    cache = int(CACHED * total)
    found = report.Found(total, cache, rate, at_hand)
    with slow(folder, rate, args.slowfs) as (place, options, how):
        found.how = how
        say(f"== torch's DataLoader, 2 workers, from a source of {rate / 1e6:.1f} MB/s ({how})")
        found.torch, used = measured(place, args.epochs, *options)
    if used and how == FUSE:
        found.pages = with_pages(args, folder, rate, used + cache + STAGING)
    else:
        say("   torch's DataLoader with page cache is not measured: that needs root, FUSE and a memory cgroup")
    with slow(folder, rate, args.slowfs) as (place, options, how):
        say(f"== belady, the same source, a cache of {cache / 1e6:.0f} MB in RAM ({CACHED:.0%})")
        found.belady = training(place, "belady", args.epochs, *options, "--cache", f"{cache}B")
    say("")
    say(report.table(found))
    for name, text in (("demo.html", page.html(found)), ("demo.svg", page.picture(found))):
        (args.out / name).write_text(text)
    say(f"\nOpen {shown(args.out / 'demo.html')} in a browser for the plots.")
    if any(run["losses"] != found.belady["losses"] for run in found.runs.values()):
        sys.exit("demo: the loss curves differ, which they must not")


def measured(folder: Path, epochs: int, *options: str) -> tuple[dict[str, Any], int]:
    """torch's DataLoader, and the bytes that its processes held; zero where that cannot be known."""
    try:
        with MemoryGroup(Commands()) as group:
            return training(folder, "torch", epochs, *options, inside=group.inside), group.held.used
    except NoCgroup:
        return training(folder, "torch", epochs, *options), 0


def with_pages(args: argparse.Namespace, folder: Path, rate: float, limit: int) -> dict[str, Any]:
    """torch's DataLoader and the kernel's pages for it, within a limit."""
    say(f"== torch's DataLoader with page cache, in {limit / 1e6:.0f} MB: its processes, and as much as belady gets")
    with slow(folder, rate, args.slowfs, "--page-cache") as (place, options, _):
        with MemoryGroup(Commands(), limit) as group:
            return training(place, "torch", args.epochs, *options, inside=group.inside)


def training(folder: Path, loader: str, epochs: int, *options: str, inside: Sequence[Any] = ()) -> dict[str, Any]:
    """Runs the program that trains, whose progress goes to the terminal."""
    command = [sys.executable, HERE / "training.py", folder, "--loader", loader, "--epochs", epochs]
    text = [str(part) for part in (*inside, *command, *options)]
    done = subprocess.run(text, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise CommandFailed(f"training with {loader} failed (see above)")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def slow(folder: Path, rate: float, slowfs: Path | None, *how: str) -> Iterator[tuple[Path, list[str], str]]:
    """The same folder at `rate`: where, options for the training program, and how in words."""
    try:
        if slowfs is None or not Path("/dev/fuse").exists():
            raise CommandFailed("this machine has no FUSE")
        mount = Mount(Commands(), slowfs, folder, {1: f"{rate / 1e6:.3f}"}, *how)
        mounted = mount.__enter__()
    except CommandFailed as error:
        say(f"   no slow file system can be mounted ({error}); the programs make themselves slow")
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
