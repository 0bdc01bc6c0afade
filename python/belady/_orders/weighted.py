"""Sampling by weight, and mixtures of datasets.

Both may give a sample several times in an epoch, or not at all. An epoch is computed from the seed
and its number, is shared by ranks like any other order, and needs no library. The numbers are not
torch's: `torch.multinomial` draws in another way.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

from .. import _native
from .._configuration import arguments
from .._dataset.dataset import Dataset, join


class Weighted:
    """A sampler that draws samples by weight.

    >>> data = belady.open(photos)
    >>> often_owls = belady.Weighted([10.0 if label == 2 else 1.0 for label in data.targets])
    >>> loader = belady.DataLoader(data, batch_size=20, sampler=often_owls)
    >>> len(loader)
    3
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int | None = None,
        *,
        replacement: bool = True,
    ) -> None:
        self.weights = arguments.weights(weights, "weights")
        self.num_samples = (
            len(self.weights)
            if num_samples is None
            else arguments.count(num_samples, "num_samples", least=1)
        )
        self.replacement = arguments.flag(replacement, "replacement")
        possible = sum(weight > 0 for weight in self.weights)
        if not self.replacement and self.num_samples > possible:
            raise ValueError(
                f"num_samples is {self.num_samples}, but without replacement only the {possible} "
                "samples with a weight above zero can be drawn"
            )

    def __len__(self) -> int:
        return self.num_samples

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint compares, beside the seed."""
        weights = hashlib.sha256(array("d", self.weights)).hexdigest()[:16]
        return {
            "num_samples": self.num_samples,
            "weights": weights,
            "replacement": self.replacement,
        }

    def orders(self, samples: int, **options: Any) -> _native.Orders:
        """Returns the order that the engine reads."""
        if len(self.weights) != samples:
            raise ValueError(
                f"there are {len(self.weights)} weights for {samples} samples; "
                "give one for each sample"
            )
        return _native.Orders.weighted(
            self.weights, num_samples=self.num_samples, replacement=self.replacement, **options
        )


class Mixture:
    """Mixes datasets: each sample comes from a dataset that is drawn by weight.

    Each dataset is read in shuffled order, again and again. An epoch has `num_samples` samples, by
    default as many as the datasets have together. A sample's label is that of its own dataset. Ids
    count in `.dataset`, which has all datasets end to end.

    >>> mixture = belady.Mixture([belady.open(photos), belady.open(photos)], weights=[0.9, 0.1])
    >>> loader = belady.DataLoader(mixture, batch_size=30)
    >>> len(loader), len(mixture.dataset)
    (4, 120)
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        weights: Sequence[float] | None = None,
        *,
        num_samples: int | None = None,
    ) -> None:
        if not isinstance(datasets, list | tuple) or not datasets:
            raise TypeError("Mixture takes a list of at least one dataset")
        self.dataset = join(*datasets)
        self.lengths = [len(dataset) for dataset in datasets]
        self.weights = (
            [1.0] * len(datasets) if weights is None else arguments.weights(weights, "weights")
        )
        if len(self.weights) != len(datasets):
            raise ValueError(
                f"there are {len(self.weights)} weights for {len(datasets)} datasets; "
                "give one for each dataset"
            )
        for position, (length, weight) in enumerate(zip(self.lengths, self.weights, strict=True)):
            if length == 0 and weight > 0:
                raise ValueError(
                    f"dataset {position} is empty; leave it out, or give it the weight 0"
                )
        self.num_samples = (
            sum(self.lengths)
            if num_samples is None
            else arguments.count(num_samples, "num_samples", least=1)
        )

    def __len__(self) -> int:
        return self.num_samples

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint compares, beside the seed."""
        return {"num_samples": self.num_samples, "weights": self.weights}

    def orders(self, **options: Any) -> _native.Orders:
        """Returns the order that the engine reads."""
        return _native.Orders.mixture(
            self.lengths, self.weights, num_samples=self.num_samples, **options
        )
