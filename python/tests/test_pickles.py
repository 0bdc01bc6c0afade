"""Pickles name the modules that users import, and those of version 0.1 still load."""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

import pytest
from support import make

import belady
from belady import transforms as T


def modules(pickled: bytes) -> set[str]:
    """The modules of belady that a pickle of protocol 0 names."""
    named = {
        argument.split(" ")[0]
        for operation, argument, _ in pickletools.genops(pickled)
        if operation.name == "GLOBAL" and isinstance(argument, str)
    }
    return {name for name in named if name.startswith("belady")}


@pytest.fixture
def listed(data: belady.Dataset) -> belady.Dataset:
    return belady.open(list(data.paths[:3]), labels=["a", "b", "a"])


def test_a_dataset_is_pickled_under_its_public_name(data: belady.Dataset) -> None:
    assert modules(pickle.dumps(data, protocol=0)) == {"belady"}


def test_transforms_are_pickled_under_public_names() -> None:
    chain = T.Compose([T.Decode(), T.Resize(64), T.ToTensor()])
    assert modules(pickle.dumps(chain, protocol=0)) == {
        "belady.transforms.compose",
        "belady.transforms.images",
        "belady.transforms.numbers",
    }


#: Where version 0.1 had what pickles name.
BEFORE = {
    b"cbelady\nDataset\n": b"cbelady.dataset\nDataset\n",
    b"cbelady\nStats\n": b"cbelady.stats\nStats\n",
    b"cbelady\nWeighted\n": b"cbelady.mixing\nWeighted\n",
    b"cbelady._dataset.manifest\n": b"cbelady.manifest\n",
    b"cbelady._pipeline.batch\n": b"cbelady.batch\n",
}


def as_before(value: object) -> Any:
    """What loads from a pickle that version 0.1 would have made."""
    pickled = pickle.dumps(value, protocol=0)
    before = pickled
    for now, then in BEFORE.items():
        before = before.replace(now, then)
    assert before != pickled
    return pickle.loads(before)


def test_a_dataset_of_version_0_1_loads(data: belady.Dataset, listed: belady.Dataset) -> None:
    for dataset in (data, listed, belady.subset(data, [3, 1]), belady.join(data, listed)):
        loaded = as_before(dataset)
        assert type(loaded) is belady.Dataset
        assert (loaded, loaded.targets) == (dataset, dataset.targets)


def test_a_batch_of_version_0_1_loads(data: belady.Dataset) -> None:
    with make(data, batch_size=3, decode=lambda sample, label: len(sample)) as loader:
        batch = next(iter(loader))
    loaded = as_before(batch)
    assert type(loaded) is belady.Batch
    assert (loaded.ids, loaded.paths) == (batch.ids, batch.paths)


def test_figures_and_weights_of_version_0_1_load() -> None:
    assert as_before(belady.Stats(samples=3)) == {"samples": 3}
    assert as_before(belady.Weighted([1.0, 2.0])).weights == [1.0, 2.0]
