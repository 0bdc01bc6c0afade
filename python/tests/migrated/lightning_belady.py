"""A Lightning data module that names the dataset, as its users do."""

import logging
import sys
import warnings

import lightning
import torch
from torch import nn
from torchvision.transforms import CenterCrop, Compose, ToTensor

from belady import DataLoader, folder


class Pictures(lightning.LightningDataModule):
    def __init__(self, root) -> None:
        super().__init__()
        self.root = root

    def setup(self, stage) -> None:
        self.train = folder(f"{self.root}/train", transform=Compose([CenterCrop(16), ToTensor()]))
        self.val = folder(f"{self.root}/val", transform=Compose([CenterCrop(16), ToTensor()]))

    def train_dataloader(self):
        return DataLoader(dataset=self.train, batch_size=8, shuffle=True, num_workers=0, drop_last=True)

    def val_dataloader(self):
        return DataLoader(dataset=self.val, batch_size=8, shuffle=False, num_workers=0)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.LazyLinear(3))

    def training_step(self, batch, index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        print(f"train {self.current_epoch} {index}: {labels.tolist()} {loss:.6f}")
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        print(f"val {self.current_epoch} {index}: {labels.tolist()} {loss:.6f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(3)
    model = Model()
    model.net(torch.zeros(1, 3, 16, 16))  # settles its shapes
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[2],
    )  # fmt: skip
    trainer.fit(model, datamodule=Pictures(sys.argv[1]))


if __name__ == "__main__":
    main()
