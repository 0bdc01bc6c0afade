"""A small CNN in torch. Only the two lines that make data and loader are belady's."""

from __future__ import annotations

from typing import Any

import shapes
import torch
from torch import nn

import belady


def decode(sample: memoryview, label: int) -> tuple[torch.Tensor, int]:
    image = torch.frombuffer(sample, dtype=torch.uint8).view(1, shapes.SIDE, shapes.SIDE)
    return image.float() / 255, label


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(16, 2)
    )


def train(model: nn.Module, loader: Any, epochs: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for epoch in range(epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        print(f"epoch {epoch}: loss {losses[-1]:.4f}")
    return losses


def main() -> None:
    torch.manual_seed(0)
    data = belady.open(shapes.make())
    loader = belady.DataLoader(
        data, batch_size=32, shuffle=True, seed=0, drop_last=True, epochs=4, decode=decode,
        cache="ram:1MiB",
    )  # fmt: skip
    losses = train(small_cnn(), loader, epochs=4)
    assert losses[-1] < losses[0]
    print(f"waited {loader.stats()['waited_seconds']:.3f} s for data")
    loader.close()


if __name__ == "__main__":
    main()
