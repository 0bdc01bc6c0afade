"""Parts of a dataset as datasets: `belady.subset`, and torch's `Subset` and `random_split`.

A subset has ids of its own, from 0 on, so that every order, sampler and checkpoint is over it as it is
over any dataset. Its fingerprint tells it from the dataset and from other subsets; so its caches are its
own too.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from .dataset import Dataset


def subset(dataset: Dataset, ids: Iterable[int]) -> Dataset:
    """Some samples of a dataset, in this order. Labels and classes stay what they are.

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
    """What a `torch.utils.data.Subset` of a dataset of ours has, also one of another `Subset`."""
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
