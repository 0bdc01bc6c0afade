"""Transforms of samples, as plain data.

    from belady import transforms as T

    chain = [T.Decode(), T.RandomResizedCrop(224), T.RandomHorizontalFlip(),
             T.ToTensor(), T.Normalize(mean, std)]
    loader = belady.DataLoader(data, batch_size=64, transform=chain)

Names, arguments, defaults, sampling rules and pixels are those of `torchvision.transforms.v2`. A
step checks its arguments when it is made, a loader checks the chain. Native threads run it straight
into the memory of the batch. Random draws depend only on the loader's seed, the epoch and the
sample.

A chain may contain functions of yours anywhere; see docs/transforms.md.

>>> from belady import transforms as T
>>> T.Compose([T.Decode(), T.Resize(256), T.CenterCrop(224), T.ToTensor()])
Compose([Decode(), Resize(256), CenterCrop(224), ToTensor()])
"""

from __future__ import annotations

from .compose import Compose, imagenet_eval, imagenet_train
from .images import (
    CenterCrop,
    ColorJitter,
    Decode,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from .numbers import Log, Normalize, Numpy, Raw, Reshape, ScaleShift, ToDtype, ToTensor
from .step import Step
from .values import Bytes, Float, Int, Label, Text

__all__ = [
    "Bytes",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "Decode",
    "Float",
    "Int",
    "Label",
    "Log",
    "Normalize",
    "Numpy",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Raw",
    "Reshape",
    "Resize",
    "ScaleShift",
    "Step",
    "Text",
    "ToDtype",
    "ToTensor",
    "imagenet_eval",
    "imagenet_train",
]
