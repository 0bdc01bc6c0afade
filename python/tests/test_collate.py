"""The default collate gives what torch's gives."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from belady._pipeline.collate import collate

Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize(
    "samples",
    [
        [(torch.ones(2, 3), 1), (torch.zeros(2, 3), 2)],
        [{"a": torch.ones(2), "b": 1.5}, {"a": torch.ones(2), "b": 2.5}],
        [1, 2, 3],
        [1.0, 2.0],
        [True, False],
        [(torch.ones(1), {"x": [torch.ones(2), 3]}), (torch.ones(1), {"x": [torch.ones(2), 4]})],
    ],
)
def test_tensors_and_numbers_as_torch_does(samples: list[object]) -> None:
    ours, theirs = collate(samples), default_collate(samples)
    assert repr(ours) == repr(theirs)


def test_arrays_stay_with_their_library() -> None:
    images, labels = collate([(np.ones((2, 2), np.float32), 1), (np.zeros((2, 2), np.float32), 2)])
    assert isinstance(images, np.ndarray) and images.shape == (2, 2, 2)
    assert isinstance(labels, np.ndarray) and labels.tolist() == [1, 2]


def test_named_tuples_and_objects() -> None:
    made = collate([Pair(b"a", "x"), Pair(b"b", "y")])
    assert made == Pair([b"a", b"b"], ["x", "y"])
    assert collate([None, None]) == [None, None]


def test_different_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"different shapes .*\(2,\), \(3,\)"):
        collate([torch.ones(2), torch.ones(3)])
    with pytest.raises(ValueError, match="different shapes"):
        collate([np.ones(2), np.ones(3)])
    with pytest.raises(ValueError, match="different numbers of fields"):
        collate([(1, 2), (1,)])
