"""Native transforms with Accelerate. The loader knows its rank, so it is not prepared."""

from __future__ import annotations

import pictures
import torch
from accelerate import Accelerator
from torch import nn

import belady
from belady import transforms as T


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(12, 2))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = belady.DataLoader(
        belady.open(pictures.make()), batch_size=32, shuffle=True, seed=0, cache="ram:8MiB",
        transform=T.imagenet_train(32),
    )  # fmt: skip
    losses = []
    for _ in range(4):
        for batch in loader:
            images, labels = batch.to(accelerator.device)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(float(loss))
    loader.close()
    assert losses[-1] < losses[0]
    print(f"{len(losses)} steps, loss from {losses[0]:.3f} to {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
