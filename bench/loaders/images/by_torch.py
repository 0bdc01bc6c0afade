"""torch's DataLoader: with PIL, as most programs have it, or with decode_jpeg and transforms.v2."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from task import BATCH, MEAN, RATIO, SCALE, SEED, SIZE, STD, Loader


class Torch(Loader):
    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        from torchvision.datasets import ImageFolder

        load, transform = _pillow() if args.loader == "torch-pil" else _version_2()
        data = ImageFolder(args.data, transform, loader=load)
        torch.set_num_threads(1)
        self.loader = torch.utils.data.DataLoader(
            data, batch_size=BATCH, shuffle=True, num_workers=args.threads,
            generator=torch.Generator().manual_seed(SEED), persistent_workers=args.threads > 0,
        )  # fmt: skip

    def epoch(self) -> Iterator[Any]:
        return (images for images, _ in self.loader)


def _pillow() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from torchvision import transforms
    from torchvision.datasets.folder import pil_loader

    return pil_loader, transforms.Compose([
        transforms.RandomResizedCrop(SIZE, SCALE, RATIO),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])  # fmt: skip


def _version_2() -> tuple[Callable[..., Any], Callable[..., Any]]:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    def load(path: str) -> torch.Tensor:
        return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)

    return load, v2.Compose([
        v2.RandomResizedCrop(SIZE, SCALE, RATIO, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ])  # fmt: skip
