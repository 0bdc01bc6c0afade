"""From an imported loader to its first batch, as JSON.

    python start.py belady FOLDER --format records:1000
    python start.py belady FOLDER --format records:1000 --save STATE     # after half an epoch
    python start.py belady FOLDER --format records:1000 --resume STATE

The clock starts when all is imported; it stops with the first batch, of a fresh run or of one that
goes on in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH = 64
WORKERS = 2


def belady(args: argparse.Namespace) -> Callable[[], Any]:
    import belady

    def make() -> Any:
        data = belady.open(args.data, format=args.format)
        return belady.DataLoader(data, batch_size=BATCH, shuffle=True, seed=0, drop_last=True)

    return make


def stateful(args: argparse.Namespace) -> Callable[[], Any]:
    """torchdata's StatefulDataLoader: over mapped records, or over files as ImageFolder lists them."""
    import numpy
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchvision.datasets import DatasetFolder

    class Records(torch.utils.data.Dataset[Any]):
        def __init__(self, size: int) -> None:
            paths = sorted(args.data.iterdir())
            self.files = [numpy.memmap(path, numpy.uint8, "r").reshape(-1, size) for path in paths]
            self.ends = numpy.cumsum([len(file) for file in self.files])

        def __len__(self) -> int:
            return int(self.ends[-1])

        def __getitem__(self, index: int) -> Any:
            file = int(numpy.searchsorted(self.ends, index, side="right"))
            return torch.from_numpy(self.files[file][index - self.ends[file]].copy())

    def make() -> Any:
        data: Any
        if args.format.startswith("records"):
            data = Records(int(args.format.split(":")[1]))
        else:
            data = DatasetFolder(
                args.data, lambda path: Path(path).read_bytes(), is_valid_file=bool
            )
        return StatefulDataLoader(
            data, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=WORKERS,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip

    return make


def streaming(args: argparse.Namespace) -> Callable[[], Any]:
    """MosaicML's StreamingDataLoader over a local copy in its own format."""
    from streaming import StreamingDataLoader, StreamingDataset

    def make() -> Any:
        data = StreamingDataset(
            local=str(args.data), batch_size=BATCH, shuffle=True, shuffle_seed=0
        )
        return StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS, drop_last=True)

    return make


LOADERS = {"belady": belady, "stateful": stateful, "streaming": streaming}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("data", type=Path)
    parser.add_argument("--format", default="folder")
    parser.add_argument("--save", type=Path, help="the state after half an epoch goes there")
    parser.add_argument("--resume", type=Path, help="goes on from there")
    args = parser.parse_args()
    make = LOADERS[args.loader](args)
    saved = pickle.loads(args.resume.read_bytes()) if args.resume else None
    began = time.perf_counter()
    loader = make()
    if saved is not None:
        loader.load_state_dict(saved)
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - began
    if args.save:
        for _ in range(len(loader) // 2 - 1):
            next(batches)
        args.save.write_bytes(pickle.dumps(loader.state_dict()))
    print(json.dumps({"first_batch_seconds": seconds}), flush=True)
    # How long a loader takes to end is not measured here.
    del batches
    sys.stdout.close()


if __name__ == "__main__":
    main()
