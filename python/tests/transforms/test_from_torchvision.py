"""Chains of torchvision's transforms as `transform=`: native where the pixels are the same, and
else torchvision's own.

The reference is what `ImageFolder(root, transform)` gives.
"""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import make
from torchvision import transforms as v1, tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.models import ResNet50_Weights
from torchvision.transforms import InterpolationMode, v2

import belady
from belady import transforms as T
from belady.transforms import _from_torchvision as from_torchvision
from belady.transforms._chain import Chain

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOATS = v2.ToDtype(torch.float32, scale=True)


def steps(given: Any) -> list[Any]:
    return list(Chain(given).steps)


def assert_same(made: list[Any], wanted: list[Any]) -> None:
    """However they are written: one number for a square, say."""
    assert T.Compose(made).as_json() == T.Compose(wanted).as_json()


def batches(root: Path, transform: Any, **options: Any) -> list[Any]:
    with make(belady.open(root), batch_size=4, transform=transform, **options) as loader:
        return [images for images, _ in loader]


def close(ours: Any, theirs: Any, unit: float) -> None:
    """As in `test_golden`: 1/255 for 99.9 % of the pixels, and 2/255 everywhere."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    apart = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)) / unit
    assert apart.max() <= 2.001 and (apart > 1.001).mean() <= 0.001


CHAINS: list[tuple[str, Any, list[Any], float]] = [
    (
        "v1 evaluation",
        v1.Compose([v1.Resize(48), v1.CenterCrop(40), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        [T.Resize(48), T.CenterCrop(40), T.ToTensor(), T.Normalize(MEAN, STD)],
        1 / 255 / min(STD),
    ),
    (
        "v2 evaluation",
        v2.Compose(
            [v2.ToImage(), v2.Resize(48), v2.CenterCrop(40), FLOATS, v2.Normalize(MEAN, STD)]
        ),
        [T.Resize(48), T.CenterCrop(40), T.ToTensor(), T.Normalize(MEAN, STD)],
        1 / 255 / min(STD),
    ),
    (
        "bicubic, by a pair",
        v1.Compose([v1.Resize((40, 30), InterpolationMode.BICUBIC), v1.ToTensor()]),
        [T.Resize((40, 30), "bicubic"), T.ToTensor()],
        1 / 255,
    ),
    (
        "Pillow smooths whatever is asked for",
        v2.Compose([v2.Resize((40, 40), antialias=False), v2.ToImage(), FLOATS]),
        [T.Resize((40, 40)), T.ToTensor()],
        1 / 255,
    ),
    (
        "tensors take antialias as given",
        v2.Compose([v2.ToImage(), v2.Resize((40, 40), antialias=False), FLOATS]),
        [T.Resize((40, 40), antialias=False), T.ToTensor()],
        1 / 255,
    ),
    (
        "the nearest pixel of tensors",
        v2.Compose([v2.PILToTensor(), v2.Resize((40, 30), InterpolationMode.NEAREST)]),
        [T.Resize((40, 30), "nearest"), T.ToTensor("uint8")],
        1,
    ),
    (
        "padding and flips",
        v1.Compose(
            [
                v1.Resize((30, 30)),
                v1.Pad((1, 2, 3, 4), fill=(9, 8, 7)),
                v1.RandomHorizontalFlip(1.0),
                v1.RandomVerticalFlip(1.0),
                v1.PILToTensor(),
                v1.ConvertImageDtype(torch.float32),
            ]
        ),
        [
            T.Resize((30, 30)),
            T.Pad((1, 2, 3, 4), (9, 8, 7)),
            T.RandomHorizontalFlip(1.0),
            T.RandomVerticalFlip(1.0),
            T.ToTensor(),
        ],
        1 / 255,
    ),
    (
        "floats up to 255",
        v2.Compose([v2.ToImage(), v2.Resize((8, 8)), v2.ToDtype(torch.float32)]),
        [T.Resize((8, 8)), T.ToTensor("uint8"), T.ToDtype("float32")],
        1,
    ),
    (
        "bytes",
        v2.Compose(
            [v2.RGB(), v2.Identity(), v2.ToImage(), v2.CenterCrop(40), v2.ToDtype(torch.uint8)]
        ),
        [T.CenterCrop(40), T.ToTensor("uint8")],
        1,
    ),
    (
        "half of the bits",
        v2.Compose([v2.ToImage(), v2.CenterCrop(40), v2.ToDtype(torch.bfloat16, scale=True)]),
        [T.CenterCrop(40), T.ToTensor("bfloat16")],
        1 / 255,
    ),
    (
        "Compose in Compose",
        v1.Compose(
            [v1.Compose([v1.Resize((9, 9))]), torch.nn.Sequential(v1.CenterCrop(8)), v1.ToTensor()]
        ),
        [T.Resize((9, 9)), T.CenterCrop(8), T.ToTensor()],
        1 / 255,
    ),
    (
        "the transforms of weights",
        ResNet50_Weights.IMAGENET1K_V2.transforms(crop_size=40, resize_size=48),
        [T.Resize((48,)), T.CenterCrop((40,)), T.ToTensor(), T.Normalize(MEAN, STD)],
        1 / 255 / min(STD),
    ),
]


@pytest.mark.parametrize(
    ("given", "native", "unit"), [case[1:] for case in CHAINS], ids=[case[0] for case in CHAINS]
)
def test_known_chains_run_natively_with_torchvisions_pixels(
    jpegs: Path, given: Any, native: list[Any], unit: float
) -> None:
    assert_same(steps(given), [T.Decode(), *native])
    reference = ImageFolder(str(jpegs), given)
    wanted = [image for image, _ in reference]
    for start, made in zip(range(0, 24, 4), batches(jpegs, given), strict=True):
        stacked = torch.stack([torch.as_tensor(image) for image in wanted[start : start + 4]])
        if stacked.dtype == torch.bfloat16:
            assert made.dtype == stacked.dtype
            made, stacked = made.float(), stacked.float()
        close(made, stacked, unit)


RANDOM = [
    (
        v1.RandomResizedCrop(32, (0.2, 0.9), (0.5, 2.0)),
        T.RandomResizedCrop(32, (0.2, 0.9), (0.5, 2.0)),
    ),
    (v2.RandomResizedCrop((32, 24)), T.RandomResizedCrop((32, 24))),
    (v1.RandomHorizontalFlip(0.3), T.RandomHorizontalFlip(0.3)),
    (v2.RandomVerticalFlip(), T.RandomVerticalFlip()),
    (v1.RandomCrop(20, 4, padding_mode="reflect"), T.RandomCrop(20, 4, padding_mode="reflect")),
    (v1.RandomCrop(20, (1, 2, 3, 4)), T.RandomCrop(20, (1, 2, 3, 4))),
    (v2.RandomCrop(20, (1, 2, 3, 4), fill=5), T.RandomCrop(20, (1, 2, 3, 4), fill=5)),
    (v2.RandomCrop(90, pad_if_needed=True), T.RandomCrop(90, pad_if_needed=True)),
]


@pytest.mark.parametrize(("theirs", "ours"), RANDOM, ids=lambda it: repr(it)[:40])
def test_random_steps_keep_their_parameters(theirs: Any, ours: T.Step) -> None:
    as_tensor = v1.ToTensor() if theirs.__module__ == v1.Resize.__module__ else v2.PILToTensor()
    kind = "float32" if isinstance(as_tensor, v1.ToTensor) else "uint8"
    assert_same(steps([theirs, as_tensor]), [T.Decode(), ours, T.ToTensor(kind)])


def test_colours_are_jittered_natively_where_the_pixels_are_the_same() -> None:
    for build in (v1, v2):
        chain = [build.PILToTensor(), build.ColorJitter(0.5, 0.1, (0.7, 1.3), 0.1)]
        ours = T.ColorJitter((0.5, 1.5), (0.9, 1.1), (0.7, 1.3), (-0.1, 0.1))
        assert_same(steps(chain), [T.Decode(), ours, T.ToTensor("uint8")])
        assert from_torchvision.as_pillow in steps([build.ColorJitter(0.5), build.PILToTensor()])


@pytest.mark.parametrize("kind", ["brightness", "contrast", "saturation", "hue"])
@pytest.mark.parametrize("of", ["tensor", "Pillow"])
def test_jittered_colours_are_those_of_torchvision(jpegs: Path, kind: str, of: str) -> None:
    for factor in (0.4, 0.9, 1.7) if kind != "hue" else (-0.3, 0.2):
        jitter = v1.ColorJitter(**{kind: (factor, factor)})  # type: ignore[arg-type]
        last = [v1.PILToTensor(), jitter] if of == "tensor" else [jitter, v1.PILToTensor()]
        chain = v1.Compose([v1.CenterCrop(40), *last])
        wanted = torch.stack([image for image, _ in ImageFolder(str(jpegs), chain)])
        close(torch.cat(batches(jpegs, chain)), wanted, 1)


def seen(value: Any) -> torch.Tensor:
    """What a function of the user's gets."""
    SEEN.append(value)
    pixels = value if isinstance(value, torch.Tensor) else torch.as_tensor(np.array(value))
    return torch.as_tensor(pixels.float().mean())


SEEN: list[Any] = []


@pytest.mark.parametrize(
    ("before", "kind", "mode"),
    [
        ([], Image.Image, "RGB"),
        ([v1.CenterCrop(20)], Image.Image, "RGB"),
        ([v2.ToImage(), v2.CenterCrop(20)], tv_tensors.Image, torch.uint8),
        ([v2.PILToTensor(), v2.CenterCrop(20)], torch.Tensor, torch.uint8),
        ([v2.ToImage(), v2.CenterCrop(20), FLOATS], tv_tensors.Image, torch.float32),
        ([v1.CenterCrop(20), v1.ToTensor()], torch.Tensor, torch.float32),
    ],
    ids=["Pillow", "Pillow, cropped", "tv_tensor", "tensor", "tv_tensor of floats", "floats"],
)
def test_functions_get_what_torchvision_would_give_them(
    jpegs: Path, before: list[Any], kind: type[Any], mode: Any
) -> None:
    SEEN.clear()
    means = torch.cat(batches(jpegs, v2.Compose([*before, seen]), num_threads=1))
    ours, SEEN[:] = [type(value) for value in SEEN], []
    wanted = torch.stack(
        [image for image, _ in ImageFolder(str(jpegs), v2.Compose([*before, seen]))]
    )
    assert set(ours) == {type(value) for value in SEEN} and issubclass(ours[0], kind)
    assert (SEEN[0].mode if isinstance(SEEN[0], Image.Image) else SEEN[0].dtype) == mode
    assert (means - wanted).abs().max() < 0.05


@pytest.mark.parametrize("workers", [0, 2])
def test_the_rest_is_run_by_torchvision_itself(jpegs: Path, workers: int) -> None:
    chain = v1.Compose(
        [
            v1.Resize((40, 40)),
            v1.Grayscale(3),
            v1.RandomRotation((90, 90)),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
            v1.RandomErasing(0.0),
        ]
    )
    wanted = torch.stack([image for image, _ in ImageFolder(str(jpegs), chain)])
    made = torch.cat(batches(jpegs, chain, num_workers=workers))
    close(made, wanted, 1 / 255 / min(STD))


def test_the_split_of_a_chain_is_logged_once(jpegs: Path, caplog: pytest.LogCaptureFixture) -> None:
    from_torchvision._LOGGED.clear()
    caplog.set_level(logging.INFO, "belady")
    native = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
    mixed = v1.Compose([v1.Resize((8, 8)), v1.GaussianBlur(3), v1.ToTensor()])
    for _ in range(2):
        batches(jpegs, native)
        batches(jpegs, mixed)
    logged = [
        (r.levelname, r.getMessage()) for r in caplog.records if "torchvision" in r.getMessage()
    ]
    assert logged == [
        ("INFO", "Resize, ToTensor of torchvision's transforms runs natively"),
        (
            "WARNING",
            "Resize of torchvision's transforms runs natively, and GaussianBlur, ToTensor in Python, "
            "by torchvision itself",
        ),
    ]


def test_images_of_pillows_come_out_where_torchvision_gives_them(jpegs: Path) -> None:
    chain = v1.Compose([v1.CenterCrop(20)])

    def collate(samples: list[Any]) -> list[Any]:
        return [image.size for image, _ in samples]

    with make(belady.open(jpegs), batch_size=4, transform=chain, collate_fn=collate) as loader:
        assert list(next(iter(loader))) == [(20, 20)] * 4


def test_such_chains_are_pickled_and_stand_in_fields(jpegs: Path) -> None:
    chain = Chain(v1.Compose([v1.Resize((8, 8)), v1.GaussianBlur(3), v1.ToTensor()]))
    again = pickle.loads(pickle.dumps(chain))
    assert [type(step) for step in again.steps] == [type(step) for step in chain.steps]
    fields = {"image": v1.Compose([v1.Resize((8, 8)), v1.ToTensor()]), "label": T.Label()}
    with make(belady.open(jpegs), batch_size=4, transform=fields) as loader:
        assert next(iter(loader))["image"].shape == (4, 3, 8, 8)


def test_a_subclass_of_the_users_is_not_taken_for_torchvisions(jpegs: Path) -> None:
    class Darker(v1.CenterCrop):
        def forward(self, img: Any) -> Any:
            return super().forward(img).point(lambda value: value // 2)

    chain = v1.Compose([Darker(20), v1.PILToTensor()])
    wanted = torch.stack([image for image, _ in ImageFolder(str(jpegs), chain)])
    assert torch.equal(torch.cat(batches(jpegs, chain)), wanted)


def test_parameters_that_torchvision_alone_knows_are_left_to_it() -> None:
    for given in (
        v1.Resize(8, InterpolationMode.NEAREST),
        v1.Resize(8, InterpolationMode.LANCZOS),
        v2.Pad(1, fill={tv_tensors.Image: 1}),
    ):
        assert steps([given, v1.PILToTensor()])[:2] == [T.Decode(), from_torchvision.as_pillow]
