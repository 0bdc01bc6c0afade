"""Loaders that feed a GPU: each gives batches without end, and how to end it.

All do ImageNet's training transform on the same files. Batches are pairs of images and labels: float32 in
pinned memory, or bfloat16 in memory of the GPU, which is what training makes of them at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Feed = tuple[Iterator[Any], Callable[[], None]]


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def torch_pil(args: argparse.Namespace) -> Feed:
    """As in torch's own example of ImageNet, with workers that live across epochs."""
    from torchvision import datasets, transforms

    transform = transforms.Compose([
        transforms.RandomResizedCrop(SIDE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ])  # fmt: skip
    return torch_feed(args, datasets.ImageFolder(args.folder, transform))


def torch_v2(args: argparse.Namespace) -> Feed:
    """The fastest that torch has without a GPU's decoder: no PIL, a quarter of the bytes from workers and to the
    GPU, which makes numbers of them."""
    import torch
    from torchvision import datasets
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()])
    batches, close = torch_feed(args, datasets.ImageFolder(args.folder, transform, loader=decoded))
    mean, std = (
        torch.tensor(values, device=args.device).view(1, 3, 1, 1) * 255 for values in (MEAN, STD)
    )

    def normalised() -> Iterator[Any]:
        for images, labels in batches:
            images = images.to(args.device, non_blocking=True).to(memory_format=torch.channels_last)
            yield ((images - mean) / std).to(torch.bfloat16), labels

    return normalised(), close


def decoded(path: str) -> Any:
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


def torch_feed(args: argparse.Namespace, data: Any) -> Feed:
    import torch

    loader = torch.utils.data.DataLoader(
        data, batch_size=args.batch, shuffle=True, drop_last=True, num_workers=args.threads,
        pin_memory=args.device == "cuda", persistent_workers=True,
    )  # fmt: skip
    batches = endless(loader)

    def close() -> None:
        batches.close()
        # Its workers end with the iterator that it keeps.
        loader._iterator = None

    return batches, close


def belady(args: argparse.Namespace, **how: Any) -> Feed:
    """Ours. All images fit into the cache, as they fit into the page cache for others."""
    import belady

    loader = belady.DataLoader(
        belady.open(args.folder), batch_size=args.batch, shuffle=True, seed=0, drop_last=True,
        transform=belady.transforms.imagenet_train(SIDE, dtype="bfloat16"),
        device=args.device, memory_format="channels_last", **how,
    )  # fmt: skip
    batches = endless(loader)

    def close() -> None:
        batches.close()
        loader.close()

    return batches, close


def belady_gpu(args: argparse.Namespace) -> Feed:
    """The GPU's own decoder takes the JPEG files."""
    if args.device != "cuda":
        raise RuntimeError("there is no GPU to decode on")
    return belady(args, decode="gpu")


LOADERS: dict[str, Callable[[argparse.Namespace], Feed]] = {
    "torch": torch_pil,
    "torch-v2": torch_v2,
    "belady": belady,
    "belady-gpu": belady_gpu,
}
