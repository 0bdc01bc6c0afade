"""The demo with torch: its DataLoader, belady in its place, and a CNN of three layers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy
import torch
from settings import BATCH, STAGING, WORKERS
from throttle import Link
from torch import nn

torch.set_num_threads(1)


def decode(file: bytes | memoryview, label: int) -> tuple[torch.Tensor, int]:
    """From a file's bytes to what the network takes."""
    pixels = images.decode(file).transpose(2, 0, 1).astype(numpy.float32)
    return torch.from_numpy(pixels / 255 - 0.5), label


class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Files in a folder for each class, as torchvision's ImageFolder numbers them."""

    def __init__(self, folder: Path, link: Link | None) -> None:
        self.files = images.listing(folder)
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


class Network:
    """The model and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(32, images.CLASSES),
        )  # fmt: skip
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def step(self, pictures: torch.Tensor, labels: torch.Tensor) -> float:
        """Learns from one batch, and returns its loss."""
        loss = nn.functional.cross_entropy(self.model(pictures), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()
