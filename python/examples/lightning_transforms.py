"""Native transforms in Lightning: the loader is all that differs."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import lightning
import pictures
import torch
from torch import nn

import belady
from belady import transforms as T


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(12, 2))
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.losses.append(float(loss))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    loader = belady.DataLoader(
        belady.open(pictures.make()), batch_size=32, shuffle=True, seed=0, cache="ram:8MiB",
        transform=T.imagenet_train(32),
    )  # fmt: skip
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tempfile.mkdtemp(prefix="belady-lightning-"),
    )  # fmt: skip
    trainer.fit(model, loader)
    loader.close()
    assert model.losses[-1] < model.losses[0]
    print(f"{len(model.losses)} steps, loss from {model.losses[0]:.3f} to {model.losses[-1]:.3f}")


if __name__ == "__main__":
    main()
