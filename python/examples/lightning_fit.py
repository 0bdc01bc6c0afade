"""Lightning. Its checkpoints carry the loader's state, so a run resumes within an epoch."""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning
import shapes
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch_single import decode, small_cnn

import belady


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_cnn()
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        self.seen.append(batch.ids)
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(data: belady.Dataset, steps: int, folder: Path, resume: str | None) -> list[list[int]]:
    """Trains until so many steps are done; the ids of the batches it saw."""
    model = Model()
    loader = belady.DataLoader(
        data, batch_size=32, shuffle=True, seed=0, decode=decode, cache="ram:1MiB"
    )
    saving = ModelCheckpoint(folder, filename="at-{step}", every_n_train_steps=4, save_top_k=-1)
    trainer = lightning.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, callbacks=[saving],
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, loader, ckpt_path=resume, weights_only=False)
    loader.close()
    return model.seen


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = belady.open(shapes.make())
    folder = Path(tempfile.mkdtemp(prefix="belady-lightning-"))
    whole = fit(data, 9, folder / "whole", None)
    fit(data, 4, folder / "part", None)
    rest = fit(data, 9, folder / "part", str(folder / "part/at-step=4.ckpt"))
    assert rest == whole[4:], "goes on with the very next batch"
    print(f"{len(whole)} steps; the last {len(rest)} again from a checkpoint, the same samples")


if __name__ == "__main__":
    main()
