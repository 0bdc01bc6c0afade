"""Accelerate. The loader is not prepared: it knows its rank, and gives what the rank needs.

Registered for checkpointing, it is saved and loaded with everything else.
"""

from __future__ import annotations

import tempfile

import shapes
import torch
from accelerate import Accelerator
from torch import nn
from torch_single import decode, small_cnn

import belady


def train(data: belady.Dataset, steps: int, save: str | None, load: str | None) -> list[list[int]]:
    """Some steps; the ids of the batches that were seen."""
    accelerator = Accelerator(cpu=True)
    model = small_cnn()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    loader = belady.DataLoader(
        data, batch_size=32, shuffle=True, seed=0, decode=decode, cache="ram:1MiB"
    )
    accelerator.register_for_checkpointing(loader)
    if load is not None:
        accelerator.load_state(load)
    seen: list[list[int]] = []
    while len(seen) < steps:
        for batch in loader:
            images, labels = batch.to(accelerator.device)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            seen.append(batch.ids)
            if len(seen) == steps:
                break
    if save is not None:
        accelerator.save_state(save)
    loader.close()
    return seen


def main() -> None:
    data = belady.open(shapes.make())
    folder = tempfile.mkdtemp(prefix="belady-accelerate-")
    whole = train(data, 9, None, None)
    train(data, 4, folder, None)
    rest = train(data, 5, None, folder)
    assert rest == whole[4:], "goes on with the very next batch"
    print(f"{len(whole)} steps; the last {len(rest)} again from a checkpoint, the same samples")


if __name__ == "__main__":
    main()
