"""torch's ImageNet example in its shape: validation on all ranks, and an auxiliary loader for what they cannot share."""

import os
import sys

import torch
import torch.distributed as dist
import torchvision.datasets as datasets
import torchvision.transforms as transforms
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

EPOCHS, BATCH, WORKERS = 2, 8, 0


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(192, 3)))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    traindir, valdir = (os.path.join(sys.argv[1], name) for name in ("train", "val"))
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])

    train_dataset = datasets.ImageFolder(
        traindir,
        transforms.Compose(
            [
                transforms.RandomResizedCrop(64),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    val_dataset = datasets.ImageFolder(
        valdir,
        transforms.Compose(
            [
                transforms.Resize(72),
                transforms.CenterCrop(64),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    train_sampler = DistributedSampler(train_dataset)
    val_sampler = DistributedSampler(val_dataset, shuffle=False, drop_last=True)
    train_loader = DataLoader(
        train_dataset, batch_size=BATCH, shuffle=(train_sampler is None), num_workers=WORKERS,
        pin_memory=True, sampler=train_sampler)  # fmt: skip
    val_loader = DataLoader(
        val_dataset, batch_size=BATCH, shuffle=False, num_workers=WORKERS, pin_memory=True,
        sampler=val_sampler)  # fmt: skip

    validate(val_loader, model, criterion)
    for epoch in range(EPOCHS):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, epoch)
    dist.barrier()
    dist.destroy_process_group()


def say(text) -> None:
    sys.stdout.write(f"rank {dist.get_rank()} {text}\n")  # at once, among what other ranks write


def train(loader, model, criterion, optimizer, epoch) -> None:
    model.train()
    for images, target in loader:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(f"train {epoch}: {tuple(images.shape)} {target.tolist()}")


def validate(val_loader, model, criterion) -> None:
    def run_validate(loader, base) -> None:
        with torch.no_grad():
            for number, (images, target) in enumerate(loader, start=base):
                loss = criterion(model.module(images), target)
                say(f"val {number}: {target.tolist()} {images.mean():.3f} {loss:.3f}")

    model.eval()
    run_validate(val_loader, 0)
    if len(val_loader.sampler) * dist.get_world_size() < len(val_loader.dataset):
        left = range(len(val_loader.sampler) * dist.get_world_size(), len(val_loader.dataset))
        aux_val_dataset = Subset(val_loader.dataset, left)
        aux_val_loader = DataLoader(
            aux_val_dataset, batch_size=BATCH, shuffle=False, num_workers=WORKERS,
            pin_memory=True)  # fmt: skip
        run_validate(aux_val_loader, len(val_loader))


if __name__ == "__main__":
    main()
