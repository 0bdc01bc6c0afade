"""Functions of Python's anywhere in a chain, in threads and in processes."""

from __future__ import annotations

import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import make
from torchvision.transforms import v2

import belady
from belady import transforms as T
from belady.errors import StepError

from .pictures import encoded, make_photos

WAYS = [{"num_workers": 0}, {"num_workers": 2}]
ways = pytest.mark.parametrize("way", WAYS, ids=["threads", "processes"])

TAIL = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor()]


def same(value: Any) -> Any:
    return value


def inverted(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    return 255 - image


def as_pillow(image: np.ndarray[Any, Any]) -> Image.Image:
    return Image.fromarray(image).rotate(90, expand=True)


def halved(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32
    return tensor / 2


def unwrapped(data: Any) -> bytes:
    return bytes(data)[3:]


def as_value(data: Any) -> dict[str, Any]:
    return {"size": len(data), "text": "x" * (len(data) % 7)}


@ways
def test_functions_between_steps(images: belady.Dataset, way: dict[str, Any]) -> None:
    small = [T.Resize((12, 12)), T.ToTensor()]
    chain = [T.Decode(), inverted, *small, halved, T.Normalize((0.1,) * 3, (2.0,) * 3)]
    plain = T.Compose([T.Decode(), *small])
    with make(images, batch_size=6, shuffle=True, transform=chain, **way) as loader:
        for batch in loader:
            assert batch[0].shape == (6, 3, 12, 12) and batch[0].dtype == torch.float32
            for id_, tensor in zip(batch.ids, batch[0], strict=True):
                expected = ((1 - plain(images[id_][0])) / 2 - 0.1) / 2
                # The image is inverted before it is resized, so it is rounded the other way.
                torch.testing.assert_close(tensor, expected, rtol=0, atol=0.5 / 255)


@ways
def test_a_function_at_the_end_changes_no_draw(images: belady.Dataset, way: dict[str, Any]) -> None:
    options: dict[str, Any] = {"batch_size": 6, "shuffle": True, "seed": 5}
    native = make(images, transform=[T.Decode(), *TAIL], **options)
    mixed = make(images, transform=[T.Decode(), *TAIL, same], **options, **way)
    for _ in range(2):
        for one, other in zip(native, mixed, strict=True):
            assert one.ids == other.ids and torch.equal(one[0], other[0])
    native.close()
    mixed.close()


@ways
def test_resume_and_epochs_with_functions(images: belady.Dataset, way: dict[str, Any]) -> None:
    chain = [T.Decode(), same, *TAIL]
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "transform": chain, **way}
    with make(images, **options) as loader:
        whole = [batch[0].clone() for _ in range(2) for batch in loader]
    with make(images, **options) as loader:
        for number, _ in enumerate(loader):
            if number == 1:
                saved = loader.state_dict()
                break
    with make(images, **options) as again:
        again.load_state_dict(saved)
        rest = [batch[0].clone() for _ in range(2) for batch in again]
    assert all(map(torch.equal, rest, whole[2:])) and len(rest) == len(whole) - 2


def test_two_segments_do_not_draw_the_same(images: belady.Dataset) -> None:
    """The flips before and behind a function are independent."""
    marks = [[], []]

    def mark(which: int) -> Any:
        def noticed(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            marks[which].append(int(image[0, 0, 0]))
            return image

        return noticed

    def arrow(data: Any) -> np.ndarray[Any, Any]:
        image = np.zeros((2, 2, 3), np.uint8)
        image[:, 1] = 255
        return image

    chain = T.Compose([arrow, T.RandomHorizontalFlip(), mark(0), T.RandomHorizontalFlip(), mark(1)])
    for sample in range(200):
        chain(b"", sample=sample)
    first, both = (np.array(mark) > 0 for mark in marks)
    second = first != both
    assert 60 < first.sum() < 140 and 60 < second.sum() < 140
    assert 60 < (first == second).sum() < 140


def test_images_of_pillow_may_be_returned(images: belady.Dataset) -> None:
    made = T.Compose([T.Decode(), as_pillow, T.ToTensor("uint8", "HWC")])(images[0][0])
    expected = np.rot90(np.asarray(T.Compose([T.Decode()])(images[0][0])))
    assert np.array_equal(made.numpy(), expected)


def test_grey_images_of_pillow_have_one_channel() -> None:
    data = encoded(30, 20)
    chain = [
        T.Decode(),
        lambda image: Image.fromarray(image).convert("L"),
        T.CenterCrop(8),
        T.ToTensor(),
    ]
    expected = T.Compose([T.Decode("GRAY"), T.CenterCrop(8), T.ToTensor()])(data)
    torch.testing.assert_close(T.Compose(chain)(data), expected, rtol=0, atol=1 / 255)


def test_a_function_may_return_numbers_for_a_step_that_reads_bytes() -> None:
    numbers = np.arange(6, dtype=np.int32)
    made = T.Compose([lambda data: numbers, T.Raw("int32", (2, 3))])(b"")
    assert made.tolist() == numbers.reshape(2, 3).tolist()
    with pytest.raises(StepError, match="step 1 returned .* must be contiguous"):
        T.Compose([lambda data: memoryview(data)[::2], T.Raw("uint8")])(b"abcd")


def test_a_function_may_come_first_and_return_bytes(tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(b"xyz" + encoded(40, 30))
    chain = [unwrapped, T.Decode(), T.RandomResizedCrop(8), T.ToTensor()]
    with make(belady.flat(tmp_path), transform=chain) as loader:
        assert next(iter(loader))[0].shape == (1, 3, 8, 8)


@ways
def test_the_result_of_the_last_function_is_collated(
    images: belady.Dataset, way: dict[str, Any]
) -> None:
    with make(images, batch_size=4, transform=as_value, **way) as loader:
        values, labels = next(iter(loader))
    assert values["size"].tolist() == [images.size(id_) for id_ in range(4)]
    assert isinstance(values["text"], list) and labels.tolist() == [0, 0, 0, 0]


@ways
def test_torchvision_behind_to_tensor(images: belady.Dataset, way: dict[str, Any]) -> None:
    chain = [T.Decode(), T.Resize((20, 20)), T.ToTensor(), v2.GaussianBlur(3, 1.0)]
    with make(images, batch_size=4, transform=chain, **way) as loader:
        blurred, _ = next(iter(loader))
    plain = T.Compose(chain[:3])(images[0][0])
    torch.testing.assert_close(blurred[0], v2.functional.gaussian_blur(plain, [3, 3], [1.0, 1.0]))


def test_torchvision_on_arrays_is_refused_since_it_does_nothing_there(
    images: belady.Dataset,
) -> None:
    message = r"step 2 \(CenterCrop\): torchvision's .*write belady\.transforms\.CenterCrop"
    with pytest.raises(ValueError, match=message):
        make(images, transform=[T.Decode(), v2.CenterCrop(8), T.ToTensor()])
    with pytest.raises(ValueError, match=r"step 2 \(GaussianBlur\).*put it behind ToTensor"):
        make(images, transform=[T.Decode(), v2.GaussianBlur(3), T.ToTensor()])


@pytest.mark.parametrize("first", [Image.fromarray, v2.ToImage(), v2.Compose([v2.ToImage()])])
def test_torchvision_behind_a_function_that_gives_what_it_takes(first: Any) -> None:
    data = encoded(30, 20)
    made = T.Compose(
        [T.Decode(), first, v2.RandomHorizontalFlip(1.0), v2.PILToTensor(), v2.ToPureTensor()]
    )(data)
    expected = T.Compose([T.Decode(), T.RandomHorizontalFlip(1.0), T.ToTensor("uint8")])(data)
    assert torch.equal(made, expected)


def test_torchvision_behind_a_function_that_gives_arrays_is_refused(images: belady.Dataset) -> None:
    chain = [T.Decode(), inverted, v2.GaussianBlur(3), T.ToTensor()]
    with make(images, transform=chain) as loader:
        with pytest.raises(
            belady.DecodeError, match=r"000\.jpg: step 3 \(GaussianBlur\).*behind ToTensor"
        ):
            next(iter(loader))


def picky(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if image.shape[1] == 95:
        raise LookupError("not this one")
    return image


@pytest.fixture
def one_of_95(tmp_path: Path) -> belady.Dataset:
    root = make_photos(tmp_path / "photos", each=4)
    for file in root.rglob("*.jpg"):
        file.write_bytes(encoded(64, 48))
    (root / "dog" / "001.jpg").write_bytes(encoded(95, 48))
    return belady.open(root)


@ways
def test_an_error_names_the_step_the_file_and_the_line(
    one_of_95: belady.Dataset, way: dict[str, Any]
) -> None:
    chain = [T.Decode(), picky, T.CenterCrop(8), T.ToTensor()]
    with make(one_of_95, batch_size=3, transform=chain, **way) as loader:
        with pytest.raises(belady.DecodeError) as raised:
            list(loader)
    message = str(raised.value)
    named = r"decode failed on .*dog/001\.jpg: step 2 \(picky\): LookupError: not this one\n"
    assert re.match(named, message)
    assert 'raise LookupError("not this one")' in message
    assert "belady/transforms" not in message, "only the user's own lines"
    assert isinstance(raised.value.__cause__, LookupError)
    with make(one_of_95, batch_size=3, transform=chain, on_error="skip", **way) as loader:
        assert [len(batch.ids) for batch in loader] == [3, 2, 3, 3]
        assert loader.stats()["failures"] == 1


def to_nothing(image: Any) -> Any:
    return np.zeros((0, 4, 3), np.uint8)


def to_four_channels(image: Any) -> Any:
    return np.zeros((9, 9, 4), np.uint8)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "step 2 returned NoneType, which no step accepts"),
        (np.zeros((9, 9, 3), np.complex64), "step 2 returned an array of complex64"),
        (torch.zeros((9, 9, 3), dtype=torch.complex64), "step 2 returned an array of complex64"),
        ("text", "step 2 returned"),
    ],
)
def test_the_result_of_a_function_has_to_be_numbers(
    images: belady.Dataset, returned: Any, message: str
) -> None:
    with make(images, transform=[T.Decode(), lambda image: returned, T.ToTensor()]) as loader:
        with pytest.raises(belady.DecodeError, match=message):
            next(iter(loader))


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float16", "int64", ">i4", "float64"])
@pytest.mark.parametrize("of_torch", [False, True])
def test_numbers_of_any_kind_may_be_returned(dtype: str, of_torch: bool) -> None:
    import ml_dtypes

    values = np.arange(6).reshape(2, 3)
    returned: Any = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if of_torch:
        if dtype == ">i4":
            return  # which torch does not have
        returned = torch.from_numpy(values).to(getattr(torch, dtype))
    made = T.Compose([lambda data: returned.T, T.ToDtype("float32")])(b"")
    assert made.tolist() == (values != 0 if dtype == "bool" else values).T.tolist()


@pytest.mark.parametrize("function", [to_nothing, to_four_channels])
def test_the_result_of_a_function_has_to_fit_the_next_step(
    images: belady.Dataset, function: Any
) -> None:
    chain = [T.Decode(), function, T.Resize(8), T.ToTensor(), T.Normalize((0.5,) * 3, (0.5,) * 3)]
    with make(images, transform=chain) as loader:
        with pytest.raises(belady.DecodeError, match=r"decode failed on .*000\.jpg: .*step \d"):
            next(iter(loader))


def test_the_error_of_an_impossible_order_names_the_position(images: belady.Dataset) -> None:
    with pytest.raises(ValueError, match=r"step 4 \(CenterCrop\)"):
        make(images, transform=[T.Decode(), same, T.ToTensor(), T.CenterCrop(8)])
    with pytest.raises(ValueError, match=r"step 2 \(Text\) reads the bytes; put it first"):
        make(images, transform=[T.Bytes(), T.Text()])
    for first in (T.Bytes(), T.Text()):
        with pytest.raises(ValueError, match=r"step 2 \(Decode\): .*leave (Bytes|Text) out"):
            make(images, transform=[first, T.Decode(), T.CenterCrop(8), T.ToTensor()])


def test_a_chain_with_functions_can_be_pickled() -> None:
    chain = T.Compose([T.Decode(), same, *TAIL])
    again = pickle.loads(pickle.dumps(chain))
    data = encoded(60, 40)
    assert torch.equal(chain(data, sample=3), again(data, sample=3))


def test_workers_draw_from_their_own_generators(images: belady.Dataset) -> None:
    """As with `decode`: what a function draws itself is not ours."""
    with make(images, batch_size=4, transform=[T.Decode(), _noise], num_workers=2) as loader:
        noise, _ = next(iter(loader))
    assert len(noise) == 4


def _noise(image: np.ndarray[Any, Any]) -> float:
    return random.random()
