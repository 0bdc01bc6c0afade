"""Labels from beside the dataset."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from support import make

import belady
from belady import transforms as T

CHAIN = [T.Decode(), T.Resize((8, 8)), T.ToTensor()]


def size_of(path: str) -> float:
    return float(os.path.getsize(path))


def relative(data: belady.Dataset) -> dict[str, int]:
    return {os.path.relpath(path, data.path): 100 + at for at, path in enumerate(data.paths)}


GIVEN: dict[str, Any] = {
    "list of numbers": lambda data: [100 + id_ for id_ in range(len(data))],
    "array": lambda data: np.arange(100, 100 + len(data)),
    "tensor": lambda data: torch.arange(100, 100 + len(data)),
    "by path": lambda data: {path: 100 + at for at, path in enumerate(data.paths)},
    "by path within": relative,
    "by id": lambda data: {id_: 100 + id_ for id_ in range(len(data))},
}
WAYS: list[dict[str, Any]] = [
    {"transform": CHAIN},
    {"transform": [*CHAIN, lambda image: image]},
    {"decode": lambda sample, label: (len(sample), label)},
    {"transform": [*CHAIN, abs], "num_workers": 2},
]


@pytest.mark.parametrize("way", WAYS, ids=["native", "functions", "decode", "processes"])
@pytest.mark.parametrize("given", GIVEN)
def test_labels_by(images: belady.Dataset, given: str, way: dict[str, Any]) -> None:
    with make(images, batch_size=7, shuffle=True, labels=GIVEN[given](images), **way) as loader:
        for batch in loader:
            assert [int(label) for label in batch[1]] == [100 + id_ for id_ in batch.ids]


def test_labels_of_any_kind(images: belady.Dataset) -> None:
    def labels_of(labels: Any) -> Any:
        with make(images, batch_size=4, transform=CHAIN, labels=labels) as loader:
            return next(iter(loader))[1]

    sizes = labels_of(size_of)
    assert sizes.dtype == torch.float64 and sizes.tolist() == [
        size_of(images.paths[i]) for i in range(4)
    ]
    assert labels_of(lambda path: os.path.basename(path)) == [
        "000.jpg",
        "001.jpg",
        "002.jpg",
        "003.jpg",
    ]
    assert labels_of([(i, i + 1.5) for i in range(len(images))])[1].tolist() == [1.5, 2.5, 3.5, 4.5]
    assert labels_of(np.ones((len(images), 5), np.float32)).shape == (4, 5)


def test_bytes_beside_labels(images: belady.Dataset) -> None:
    with make(images, batch_size=4, labels=list("abc" * 8)) as loader:
        samples, labels = next(iter(loader))
    assert list(labels) == ["a", "b", "c", "a"] and bytes(samples[0]) == images[0][0]


def test_wrong_labels_are_errors(images: belady.Dataset) -> None:
    with pytest.raises(ValueError, match="labels has 3 entries, and the dataset 24 samples"):
        make(images, labels=[1, 2, 3])
    with pytest.raises(TypeError, match="labels has to be a list, a mapping or a function"):
        make(images, labels="text")
    with pytest.raises(TypeError, match="labels has to be a list, a mapping or a function"):
        make(images, labels=3)
    with pytest.raises(ValueError, match="takes bytes and labels as they are; leave labels out"):
        make(images, labels=[0] * 24, collate_fn=belady.torch.stack)
    with make(images, transform=CHAIN, labels={"elsewhere.jpg": 1}) as loader:
        with pytest.raises(
            belady.BeladyError, match=r"labels has no entry for .*000\.jpg \(sample 0\)"
        ):
            next(iter(loader))
