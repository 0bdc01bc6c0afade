"""Several fields a sample: members of WebDataset samples, features of examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import make

import belady
from belady import transforms as T

from .pictures import encoded
from .shards import write_tar, write_tfrecord

IMAGE = [T.Decode(), T.Resize((8, 8)), T.ToTensor()]
SAMPLES = 12


def photo(number: int) -> bytes:
    return encoded(30 + number, 40, number)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shards") / "shards"
    root.mkdir()
    write_tar(
        root / "0.tar",
        [
            {
                "jpg" if number % 3 else "png": photo(number),
                "cls": b"%d\n" % (number % 4),
                "txt": f"Bild {number}: äöü".encode(),
                "weight": b"0.%d" % number,
                "json": json.dumps({"n": number}).encode(),
                "bin": np.full(6, number, np.float32).tobytes(),
            }
            for number in range(SAMPLES)
        ],
    )
    return root


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples") / "examples"
    root.mkdir()
    write_tfrecord(
        root / "0.tfrecord",
        [
            {
                "image": photo(number),
                "label": [number],
                "box": [0.5 * number, 1.5, -2.0, 3.25],
                "name": f"n{number}".encode(),
                "volume": np.full((2, 3), number, np.int16).tobytes(),
            }
            for number in range(SAMPLES)
        ],
    )
    return root


def same(value: Any) -> Any:
    return value


WAYS: list[dict[str, Any]] = [{}, {"functions": True}, {"functions": True, "num_workers": 2}]
ways = pytest.mark.parametrize("way", WAYS, ids=["native", "threads", "processes"])


def loaded(data: belady.Dataset, fields: Any, functions: bool = False, **options: Any) -> list[Any]:
    """All batches. With functions in the chains, Python runs them."""
    if functions:
        fields = {name: (part, [*_listed(chain), same]) for name, (part, chain) in fields.items()}
    with make(data, batch_size=5, transform=fields, **options) as loader:
        return list(loader)


def _listed(chain: Any) -> list[Any]:
    return list(chain) if isinstance(chain, list) else [chain]


@ways
def test_members_of_a_webdataset(shards: Path, way: dict[str, Any]) -> None:
    fields = {
        "image": ("jpg;png", IMAGE),
        "label": ("cls", T.Int()),
        "weight": ("weight", T.Float()),
        "text": ("txt", T.Text()),
        "raw": ("json", T.Bytes()),
        "numbers": ("bin", T.Raw("float32", (2, 3))),
    }
    batches = loaded(belady.webdataset(shards), fields, **way)
    assert [len(batch["text"]) for batch in batches] == [5, 5, 2]
    number = 0
    for batch in batches:
        assert list(batch) == list(fields)
        assert batch["label"].dtype == torch.int64 and batch["weight"].dtype == torch.float32
        for at in range(len(batch["text"])):
            assert torch.equal(batch["image"][at], T.Compose(IMAGE)(photo(number)))
            assert batch["label"][at] == number % 4
            assert batch["weight"][at] == torch.tensor(float(f"0.{number}"))
            assert batch["text"][at] == f"Bild {number}: äöü"
            assert json.loads(batch["raw"][at]) == {"n": number}
            assert batch["numbers"][at].tolist() == [[number] * 3] * 2
            number += 1
    assert number == SAMPLES


@ways
def test_features_of_an_example(examples: Path, way: dict[str, Any]) -> None:
    fields = {
        "image": ("image", IMAGE),
        "volume": ("volume", [T.Raw("int16", (2, 3)), T.ToDtype("float32"), T.Log()]),
        "name": ("name", T.Text()),
    }
    number = 0
    for batch in loaded(belady.tfrecord(examples), fields, **way):
        for at in range(len(batch["name"])):
            assert torch.equal(batch["image"][at], T.Compose(IMAGE)(photo(number)))
            assert batch["name"][at] == f"n{number}"
            torch.testing.assert_close(
                batch["volume"][at], torch.full((2, 3), float(np.log(number + 1)))
            )
            number += 1
    assert number == SAMPLES


@ways
def test_numbers_of_an_example(examples: Path, way: dict[str, Any]) -> None:
    fields = {"label": ("label", []), "box": ("box", [])}
    number = 0
    for batch in loaded(belady.tfrecord(examples), fields, **way):
        for label, box in zip(batch["label"], batch["box"], strict=True):
            assert label.tolist() == [number] and box.tolist() == [0.5 * number, 1.5, -2.0, 3.25]
            number += 1
    assert number == SAMPLES


def test_a_list_of_pairs_is_a_tuple(shards: Path) -> None:
    data = belady.webdataset(shards)
    with make(data, batch_size=4, transform=[("jpg;png", IMAGE), ("txt", T.Text())]) as loader:
        batch = next(iter(loader))
    images, texts = batch
    assert images.shape == (4, 3, 8, 8) and texts[1] == "Bild 1: äöü"
    assert batch.ids == [0, 1, 2, 3]


def test_one_pair_goes_beside_the_label(shards: Path) -> None:
    data = belady.webdataset(shards)
    with make(data, batch_size=4, transform=("jpg;png", IMAGE)) as loader:
        images, labels = next(iter(loader))
    assert images.shape == (4, 3, 8, 8)
    assert labels.tolist() == data.targets[:4] == [0, 1, 2, 3]


def test_labels_and_whole_samples_are_fields_too(images: belady.Dataset) -> None:
    fields = {"image": IMAGE, "size": [len], "label": T.Label()}
    with make(images, batch_size=4, transform=fields, labels=list(range(100, 124))) as loader:
        batch = next(iter(loader))
    assert batch["label"].tolist() == [100, 101, 102, 103]
    assert batch["size"].tolist() == [images.size(id_) for id_ in range(4)]
    del fields["size"]
    with make(images, batch_size=4, transform=fields) as loader:
        assert next(iter(loader))["label"].tolist() == [0, 0, 0, 0]


def test_collate_fn_gets_samples_of_the_same_form(shards: Path) -> None:
    data, seen = belady.webdataset(shards), []

    def keep(samples: list[Any]) -> Any:
        seen.append(samples)
        return samples

    fields = {"image": ("jpg;png", IMAGE), "text": ("txt", T.Text()), "label": T.Label()}
    for given in (fields, [("jpg;png", IMAGE), ("txt", T.Text())]):
        with make(data, batch_size=3, transform=given, collate_fn=keep) as loader:
            next(iter(loader))
    assert [sample["text"] for sample in seen[0]] == [f"Bild {n}: äöü" for n in range(3)]
    assert [sample["label"] for sample in seen[0]] == [0, 1, 2]
    assert isinstance(seen[1][0], tuple) and seen[1][2][1] == "Bild 2: äöü"
    assert seen[0][0]["image"].shape == (3, 8, 8)


@pytest.mark.parametrize("chain", [IMAGE, [*IMAGE, same]], ids=["native", "functions"])
def test_a_missing_part_is_an_error(shards: Path, chain: Any) -> None:
    data = belady.webdataset(shards)
    with make(data, batch_size=4, transform={"image": ("jpg", chain)}) as loader:
        with pytest.raises(belady.DecodeError, match=r"decode failed on .*jpg"):
            next(iter(loader))
    with make(data, batch_size=4, transform={"image": ("jpg", chain)}, on_error="skip") as loader:
        assert sum(len(batch["image"]) for batch in loader) == 8, "four have a png"


def test_parts_of_a_sample_without_parts_are_an_error(images: belady.Dataset) -> None:
    with pytest.raises((ValueError, belady.DecodeError), match="jpg"):
        with make(images, transform=("jpg", IMAGE)) as loader:
            next(iter(loader))


def test_wrong_fields_are_errors(images: belady.Dataset) -> None:
    with pytest.raises(ValueError, match="transform is an empty dict"):
        make(images, transform={})
    with pytest.raises(TypeError, match='transform, "image": a chain is made of steps'):
        make(images, transform={"image": ("jpg", 3)})
    with pytest.raises(ValueError, match=r"transform, field 1: step 1 \(Resize\)"):
        make(images, transform=[("jpg", IMAGE), ("png", T.Resize(8))])


def test_numbers_of_examples_take_the_steps_on_numbers(examples: Path) -> None:
    """`Reshape` settles the shape, so the batch is one array; nothing has to be read as bytes
    first.
    """
    data = belady.tfrecord(examples)
    fields = {
        "label": ("label", T.Int()),
        "one": ("label", T.Reshape(())),
        "row": ("label", T.Reshape((1,))),
        "half": ("label", [T.Reshape((1,)), T.ToDtype("float32"), T.ScaleShift(0.5)]),
        "box": ("box", [T.Reshape((2, 2)), T.ScaleShift(2.0)]),
        "loose": ("box", []),
    }
    for functions in (False, True):
        batch = loaded(data, fields, functions)[0]
        numbers = torch.arange(5)
        assert torch.equal(batch["label"], numbers) and torch.equal(batch["one"], numbers)
        assert torch.equal(batch["row"], numbers[:, None])
        assert torch.equal(batch["half"], numbers[:, None] * 0.5)
        assert batch["box"].shape == (5, 2, 2) and batch["box"][3, 0].tolist() == [3.0, 3.0]
    assert [value.tolist() for value in batch["loose"]][2] == [1.0, 1.5, -2.0, 3.25]


def test_numbers_that_do_not_fit_the_shape_are_an_error(examples: Path) -> None:
    with make(belady.tfrecord(examples), transform={"box": ("box", T.Reshape((3,)))}) as loader:
        with pytest.raises(
            belady.DecodeError, match=r"its input has 4 numbers, which do not fit the shape \[3\]"
        ):
            next(iter(loader))
    with make(belady.tfrecord(examples), transform={"name": ("name", T.Reshape((3,)))}) as loader:
        with pytest.raises(
            belady.DecodeError, match="name: it is bytes, but the chain begins with numbers"
        ):
            next(iter(loader))


@pytest.mark.parametrize("dtype", ["float32", "int16", "float64"])
def test_reshape_makes_one_array_of_numpy_files(tmp_path: Path, dtype: str) -> None:
    values = [np.arange(6).reshape(2, 3).astype(dtype) + number for number in range(4)]
    for number, value in enumerate(values):
        np.save(tmp_path / f"{number}.npy", value)
    with make(
        belady.flat(tmp_path), batch_size=4, transform=[T.Numpy(), T.Reshape((3, 2))]
    ) as loader:
        batch = next(iter(loader))[0]
    assert isinstance(batch, torch.Tensor) and batch.shape == (4, 3, 2)
    np.testing.assert_array_equal(batch, np.stack(values).reshape(4, 3, 2))


def test_numpy_files_of_different_kinds_stay_a_list(tmp_path: Path) -> None:
    for number, dtype in enumerate((np.float32, np.int16)):
        np.save(tmp_path / f"{number}.npy", np.zeros(4, dtype))
    with make(
        belady.flat(tmp_path), batch_size=2, transform=[T.Numpy(), T.Reshape((2, 2))]
    ) as loader:
        assert [value.dtype for value in next(iter(loader))[0]] == [torch.float32, torch.int16]
    chain = [T.Numpy(), T.Reshape((2, 2)), T.ToDtype("float32")]
    with make(belady.flat(tmp_path), batch_size=2, transform=chain) as loader:
        assert next(iter(loader))[0].shape == (2, 2, 2)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_reshaped_numpy_files_without_the_bad_ones(tmp_path: Path, on_error: str) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full(4, number))
    (tmp_path / "1.npy").write_bytes(b"broken")
    chain = [T.Numpy(), T.Reshape((2, 2))]
    with make(belady.flat(tmp_path), batch_size=3, transform=chain, on_error=on_error) as loader:
        made = next(iter(loader))[0]
    assert made[:, 0, 0].tolist() == ([0, 2] if on_error == "skip" else [0, 2, 2])
