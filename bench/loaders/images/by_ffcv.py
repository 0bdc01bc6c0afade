"""FFCV, from a file of its own (store_ffcv.py): JPEG as it stores them, or raw pixels.

Its normalisation writes channels last. That is how its users take them; `ffcv-*-chw` has them
copied to channels first, as all others deliver them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from task import BATCH, MEAN, RATIO, SCALE, SEED, SIZE, STD, Loader


class Ffcv(Loader):
    def __init__(self, args: argparse.Namespace) -> None:
        import numpy
        import torch
        from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader as FfcvLoader, OrderOption
        from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

        # For the copy to channels first, which torch makes: its threads wait in busy loops.
        torch.set_num_threads(args.threads)
        mean, std = 255 * numpy.array(MEAN), 255 * numpy.array(STD)
        steps = [
            RandomResizedCropRGBImageDecoder((SIZE, SIZE), scale=SCALE, ratio=RATIO),
            RandomHorizontalFlip(0.5),
            NormalizeImage(mean, std, numpy.float32),
            ToTensor(),
            ToTorchImage(channels_last=not args.loader.endswith("chw")),
        ]
        self.loader = FfcvLoader(
            str(args.data), batch_size=BATCH, num_workers=args.threads, os_cache=True,
            order=OrderOption.RANDOM, seed=SEED, drop_last=False, pipelines={"image": steps},
        )  # fmt: skip

    def epoch(self) -> Iterator[Any]:
        return (batch[0] for batch in self.loader)
