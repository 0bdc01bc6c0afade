"""Subsets of datasets: `belady.subset`, and torch's `Subset` and `random_split`.

A subset has its own ids, from 0 on, so orders, samplers and checkpoints treat it as any dataset.
Its fingerprint differs from those of the dataset and of other subsets, and so it has its own
caches."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from .dataset import Dataset


def subset(dataset: Dataset, ids: Iterable[int]) -> Dataset:
    """Returns some samples of a dataset, in this order. Labels and classes stay the same.

    >>> data = belady.open(photos)
    >>> few = belady.subset(data, range(0, 60, 10))
    >>> len(few), few.targets
    (6, [0, 0, 1, 1, 2, 2])
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"subset takes a dataset of belady.open, not {type(dataset).__name__}; open it first"
        )
    listed = ids.tolist() if hasattr(ids, "tolist") else ids
    chosen = array("I", [dataset._checked(sample) for sample in listed])
    part = Dataset(None, {"of": dataset._recipe, "ids": chosen}, [dataset])
    part.transform = dataset.transform
    if dataset.is_listed:
        part.native  # noqa: B018  (so that another process compares the fingerprint)
    return part


def of_torch(data: Any) -> Dataset | None:
    """Returns the subset for a `torch.utils.data.Subset`, also a nested one; None for all else."""
    kind = getattr(sys.modules.get("torch.utils.data"), "Subset", None)
    if kind is None or type(data) is not kind:
        return None
    ids: list[Any] | None = None
    while type(data) is kind:
        indices = _listed(data.indices)
        ids = indices if ids is None else [indices[sample] for sample in ids]
        data = data.dataset
    assert ids is not None
    return subset(data, ids) if isinstance(data, Dataset) else None


def _listed(indices: Any) -> list[Any]:
    given: Sequence[Any] = indices.tolist() if hasattr(indices, "tolist") else indices
    return list(given)
