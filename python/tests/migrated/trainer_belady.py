"""Hugging Face's Trainer over images. It is killed in mid-epoch, and goes on from its last checkpoint."""

import os
import signal
import sys

import torch
from torch import nn
from torchvision.transforms import CenterCrop, Compose, ToTensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from belady import DataLoader, folder


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(768, 3))

    def forward(self, pixel_values, labels):
        logits = self.net(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def collate(samples):
    images, labels = zip(*samples)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


class PictureTrainer(Trainer):
    def get_train_dataloader(self):
        data = folder(f"{sys.argv[1]}/train", transform=Compose([CenterCrop(16), ToTensor()]))
        return DataLoader(
            data, batch_size=8, shuffle=True, collate_fn=collate,
            generator=torch.Generator().manual_seed(7),
        )  # fmt: skip

    def get_eval_dataloader(self, eval_dataset=None):
        data = folder(f"{sys.argv[1]}/val", transform=Compose([CenterCrop(16), ToTensor()]))
        return DataLoader(data, batch_size=8, collate_fn=collate)

    def training_step(self, model, inputs, *more):
        loss = super().training_step(model, inputs, *more)
        said = f"{inputs['labels'].tolist()} {inputs['pixel_values'].mean():.6f} {loss:.6f}"
        print(f"step {self.state.global_step}: {said}", flush=True)
        return loss


class Killed(TrainerCallback):
    """Ends the process without a warning after so many steps."""

    def __init__(self, after) -> None:
        self.after = after

    def on_step_begin(self, args, state, control, **more) -> None:
        if state.global_step == self.after:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    output, killed_after, resume = sys.argv[2], int(sys.argv[3]), sys.argv[4] == "resume"
    torch.manual_seed(1)
    args = TrainingArguments(
        output, num_train_epochs=3, save_steps=3, logging_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, eval_strategy="epoch", per_device_train_batch_size=8, seed=11,
    )  # fmt: skip
    trainer = PictureTrainer(Model(), args, eval_dataset=[0], callbacks=[Killed(killed_after)])
    trainer.train(resume_from_checkpoint=resume or None)
    print(f"evaluated: {trainer.evaluate()['eval_loss']:.6f}", flush=True)


if __name__ == "__main__":
    main()
