"""Accelerate's example of a training that is resumed in mid-epoch, and evaluated on all processes."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torchvision.transforms import CenterCrop, Compose, ToTensor

from belady import DataLoader, folder

EPOCHS, BATCH = 2, 8


def main() -> None:
    root, checkpoint, resume = sys.argv[1], sys.argv[2], sys.argv[3] == "resume"
    accelerator = Accelerator(cpu=True)
    set_seed(5)
    train_data = folder(f"{root}/train", transform=Compose([CenterCrop(16), ToTensor()]))
    eval_data = folder(f"{root}/val", transform=Compose([CenterCrop(16), ToTensor()]))
    train_dataloader = DataLoader(train_data, shuffle=True, batch_size=BATCH, num_workers=0)
    eval_dataloader = DataLoader(eval_data, shuffle=False, batch_size=BATCH, num_workers=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    starting_epoch, resume_step = 0, None
    if resume:
        accelerator.load_state(checkpoint)
        starting_epoch, resume_step = 1, 1

    def say(*words) -> None:
        sys.stdout.write(f"rank {accelerator.process_index} {' '.join(map(str, words))}\n")

    for epoch in range(starting_epoch, EPOCHS):
        model.train()
        train_dataloader.set_epoch(epoch)
        if resume and epoch == starting_epoch and resume_step is not None:
            active_dataloader, done = accelerator.skip_first_batches(train_dataloader, resume_step), resume_step
        else:
            active_dataloader, done = train_dataloader, 0
        for step, (inputs, targets) in enumerate(active_dataloader, start=done):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            say("train", epoch, step, targets.tolist(), f"{inputs.mean():.6f}")
            if not resume and (epoch, step) == (1, 0):
                accelerator.save_state(checkpoint)
        model.eval()
        seen = []
        for inputs, targets in eval_dataloader:
            with torch.no_grad():
                outputs = model(inputs).argmax(dim=-1)
            outputs, targets, means = accelerator.gather_for_metrics((outputs, targets, inputs.mean((1, 2, 3))))
            assert len(outputs) == len(targets)
            seen += [f"{target}:{mean:.5f}" for target, mean in zip(targets.tolist(), means.tolist())]
        say("eval", epoch, len(seen), *seen)
    accelerator.end_training()


if __name__ == "__main__":
    main()
