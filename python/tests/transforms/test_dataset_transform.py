"""A transform that belongs to the dataset, as torchvision's do."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import belady
from belady import transforms as T
from transforms.pictures import make_photos

EVAL = [T.Decode(), T.Resize(40), T.CenterCrop(32), T.ToTensor()]
TRAIN = [T.Decode(), T.RandomResizedCrop(32), T.ToTensor()]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos", each=4)


def batches(loader: Any) -> list[tuple[Any, list[int]]]:
    return [(images, labels.tolist()) for images, labels in loader]


def test_a_loader_takes_the_transform_of_its_dataset(photos: Path) -> None:
    own = belady.DataLoader(belady.folder(photos, EVAL), batch_size=5)
    given = belady.DataLoader(belady.folder(photos), batch_size=5, transform=EVAL)
    for (mine, labels), (theirs, same) in zip(batches(own), batches(given), strict=True):
        assert torch.equal(mine, theirs) and labels == same


def test_a_transform_or_decode_of_the_loader_comes_first(photos: Path) -> None:
    data = belady.folder(photos, transform=EVAL)
    small = [T.Decode(), T.Resize((8, 8)), T.ToTensor()]
    assert next(iter(belady.DataLoader(data, transform=small)))[0].shape == (1, 3, 8, 8)
    sizes, _ = next(iter(belady.DataLoader(data, decode=lambda sample, label: len(sample))))
    assert sizes.tolist() == [data.size(0)]


def test_a_sample_is_transformed(photos: Path) -> None:
    data = belady.folder(photos, EVAL)
    image, label = data[5]
    images, labels = next(iter(belady.DataLoader(data, batch_size=6)))
    assert torch.equal(image, images[5]) and label == labels[5]
    data.transform = None
    assert bytes(data[5][0]) == Path(data.paths[5]).read_bytes()


def test_a_sample_is_drawn_from_pythons_generator(photos: Path) -> None:
    data = belady.folder(photos, TRAIN)
    random.seed(1)
    first, second = data[0][0], data[0][0]
    random.seed(1)
    assert torch.equal(data[0][0], first) and not torch.equal(first, second)


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader_gets_transformed_samples(photos: Path, workers: int) -> None:
    data = pickle.loads(pickle.dumps(belady.folder(photos, EVAL)))
    torchs = torch.utils.data.DataLoader(data, batch_size=5, num_workers=workers)
    ours = belady.DataLoader(data, batch_size=5)
    for (mine, labels), (theirs, same) in zip(batches(ours), batches(torchs), strict=True):
        assert torch.equal(mine, theirs) and labels == same


def test_subsets_and_joined_datasets_have_the_transform_of_what_they_are_of(photos: Path) -> None:
    data = belady.folder(photos, EVAL)
    few = torch.utils.data.Subset(data, [3, 1])  # type: ignore[var-annotated, arg-type]
    images, labels = next(iter(belady.DataLoader(few, batch_size=2)))
    assert torch.equal(images[0], data[3][0]) and labels.tolist() == [0, 0]
    assert belady.join(data, data).transform is EVAL
    with pytest.raises(ValueError, match="different transforms cannot be joined"):
        belady.join(data, belady.folder(photos))
