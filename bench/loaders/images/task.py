"""The work that all loaders do, so that none does less: ImageNet's training transform.

A JPEG file is decoded; a random part of it (8 to 100 % of the area, 3:4 to 4:3) is resized to
224x224 and flipped with a chance of one half; it is normalised, and 64 of them are a batch of
float32, channels first.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BATCH = 64
SIZE = 224
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
# Of ImageNet, for values in [0, 1].
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SEED = 0


class Loader(ABC):
    """Epoch after epoch of batches, as arrays of numpy or tensors on the CPU."""

    @abstractmethod
    def __init__(self, args: argparse.Namespace) -> None: ...

    @abstractmethod
    def epoch(self) -> Iterator[Any]: ...

    def close(self) -> None:
        """Ends what it started."""


def files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*/*.jpg"))
