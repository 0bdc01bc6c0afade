"""belady: the transform runs in the engine's threads, straight into the batch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from task import BATCH, SEED, SIZE, Loader


class Belady(Loader):
    def __init__(self, args: argparse.Namespace) -> None:
        import belady

        self.loader = belady.DataLoader(
            belady.open(args.data), batch_size=BATCH, shuffle=True, seed=SEED,
            transform=belady.transforms.imagenet_train(SIZE), num_threads=args.threads,
            cache=[args.cache] if args.cache else [], staging=args.staging,
        )  # fmt: skip

    def epoch(self) -> Iterator[Any]:
        return (images for images, _ in self.loader)

    def close(self) -> None:
        self.loader.close()
