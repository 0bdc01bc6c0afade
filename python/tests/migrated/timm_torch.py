"""A factory for loaders in the shape of timm's: seeded workers, and repeated augmentation."""

import math
import os
import random
import sys
from functools import partial

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

EPOCHS, BATCH, WORKERS = 2, 9, 2


class RepeatAugSampler(torch.utils.data.Sampler):
    """Each rank sees another augmentation of the samples that all ranks have in common."""

    def __init__(self, dataset, num_replicas=1, rank=0, shuffle=True, num_repeats=3) -> None:
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.num_repeats = num_repeats
        self.epoch = 0
        self.num_samples = math.ceil(len(dataset) * num_repeats / num_replicas)
        self.total_size = self.num_samples * num_replicas
        self.num_selected_samples = math.ceil(len(dataset) / num_replicas)

    def __iter__(self):
        g = torch.Generator()
        g.manual_seed(self.epoch)
        count = len(self.dataset)
        indices = torch.randperm(count, generator=g) if self.shuffle else torch.arange(count)
        indices = torch.repeat_interleave(indices, repeats=self.num_repeats).tolist()
        indices += indices[: self.total_size - len(indices)]
        indices = indices[self.rank : self.total_size : self.num_replicas]
        return iter(indices[: self.num_selected_samples])

    def __len__(self) -> int:
        return self.num_selected_samples

    def set_epoch(self, epoch) -> None:
        self.epoch = epoch


class Noise:
    """An augmentation that draws from numpy's and Python's generators, which workers seed."""

    def __call__(self, image):
        noise = np.random.normal(0, 0.01, tuple(image.shape)).astype(np.float32)
        return image + torch.from_numpy(noise) + random.random()


def create_transform(size):
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.ToTensor(),
            Noise(),
        ]
    )


def _worker_init(worker_id, worker_seeding="all") -> None:
    worker_info = torch.utils.data.get_worker_info()
    assert worker_info.id == worker_id and worker_info.num_workers == WORKERS
    assert len(worker_info.dataset) > 0
    if worker_seeding == "all":
        np.random.seed(worker_info.seed % (2**32 - 1))
        random.seed(worker_info.seed)
    os.close(os.open(os.path.join(sys.argv[2], f"worker-{worker_id}"), os.O_CREAT))


def create_loader(dataset, input_size, batch_size, num_workers, num_aug_repeats):
    dataset.transform = create_transform(input_size)
    sampler = RepeatAugSampler(dataset, num_repeats=num_aug_repeats)
    loader_class = DataLoader
    loader_args = dict(
        batch_size=batch_size,
        shuffle=False,
        num_workers=num_workers,
        sampler=sampler,
        collate_fn=None,
        pin_memory=False,
        drop_last=True,
        worker_init_fn=partial(_worker_init, worker_seeding="all"),
        persistent_workers=True,
    )
    try:
        return loader_class(dataset, **loader_args)
    except TypeError:
        loader_args.pop("persistent_workers")  # only in newer versions of torch
        return loader_class(dataset, **loader_args)


def main() -> None:
    torch.manual_seed(0)
    dataset = ImageFolder(sys.argv[1])
    loader = create_loader(dataset, 32, BATCH, WORKERS, 3)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for images, target in loader:
            repeats = images.flatten(1)[:, 0].view(-1, 3)  # a sample's three augmentations, next to each other
            different = (repeats[:, 0] != repeats[:, 1]) & (repeats[:, 1] != repeats[:, 2])
            print(epoch, tuple(images.shape), target.tolist(), bool(different.all()), flush=True)


if __name__ == "__main__":
    main()
