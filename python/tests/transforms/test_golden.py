"""The pixels are torchvision's: every step, on real files, with the same crop.

At most 1/255 for 99.9 % of the pixels, and 2/255 everywhere. torchvision works on tensors here,
and on images of Pillow's where it does something else with these.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from belady import _native, transforms as T
from belady.transforms.compose import as_json_text

from .pictures import encoded, opened, pixels

FILES = {
    "jpeg 4:2:0": encoded(500, 375),
    "jpeg 4:4:4": encoded(231, 307, 1, subsampling=0),
    "jpeg 4:2:2": encoded(310, 200, 6, subsampling=1),
    "jpeg progressive": encoded(320, 213, 2, progressive=True),
    "jpeg grey": encoded(211, 160, 3, mode="L"),
    "png": encoded(190, 251, 4, kind="PNG"),
    "png grey": encoded(133, 91, 7, kind="PNG", mode="L"),
    "png with alpha": encoded(120, 80, 5, kind="PNG", mode="RGBA"),
    "png palette": encoded(140, 99, 8, kind="PNG", mode="P"),
    "webp": encoded(201, 150, 9, kind="WEBP", lossless=True),
    "bmp": encoded(77, 64, 10, kind="BMP"),
    "gif": encoded(80, 70, 11, kind="GIF", mode="P"),
}
files = pytest.mark.parametrize("name", FILES)


def chain(*steps: T.Step) -> _native.Chain:
    return _native.Chain(as_json_text(steps))


def ran(data: bytes, *steps: T.Step, sample: int = 0) -> np.ndarray[Any, Any]:
    return np.asarray(memoryview(chain(*steps).run(data, 0, 0, sample)))


def drawn(data: bytes, *steps: T.Step, sample: int = 0) -> list[dict[str, Any]]:
    width, height = Image.open(io.BytesIO(data)).size
    made: list[dict[str, Any]] = json.loads(chain(*steps).drawn(0, 0, sample, width, height))
    return made


def reference(data: bytes) -> torch.Tensor:
    """The image as torchvision has it: uint8, CHW."""
    return F.pil_to_tensor(opened(data))


def close(ours: np.ndarray[Any, Any], theirs: Any, unit: float = 1.0) -> None:
    """Within tolerance; `unit` is what one step of 255 is."""
    wanted = np.asarray(theirs)
    if ours.shape != wanted.shape and ours.ndim == 3:
        ours = ours.transpose(2, 0, 1)  # images are HWC
    assert ours.shape == wanted.shape
    apart = np.abs(ours.astype(np.float64) - wanted.astype(np.float64)) / unit
    assert apart.max(initial=0) <= 2.001, f"differs by {apart.max():.2f} of 255"
    share = (apart > 1.001).mean()
    assert share <= 0.001, f"{share:.2%} of the pixels differ by more than 1 of 255"


@files
def test_decode(name: str) -> None:
    close(ran(FILES[name], T.Decode()), reference(FILES[name]))


@files
def test_decode_grey(name: str) -> None:
    close(ran(FILES[name], T.Decode("GRAY")), F.pil_to_tensor(opened(FILES[name], "L")))


def test_decode_unchanged() -> None:
    with_alpha = FILES["png with alpha"]
    close(
        ran(with_alpha, T.Decode("UNCHANGED")), F.pil_to_tensor(Image.open(io.BytesIO(with_alpha)))
    )
    close(
        ran(FILES["jpeg grey"], T.Decode("UNCHANGED")),
        F.pil_to_tensor(opened(FILES["jpeg grey"], "L")),
    )


def test_decode_cmyk() -> None:
    data = encoded(150, 90, mode="CMYK")
    close(ran(data, T.Decode()), reference(data))


def test_decode_16_bits() -> None:
    values = np.arange(64 * 48, dtype=np.uint16).reshape(48, 64) * 21
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")
    made = ran(stream.getvalue(), T.Decode())
    assert made.shape == (48, 64, 3)
    close(made, np.repeat((values / 257)[None], 3, axis=0))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_decode_turns_as_exif_says(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(96, 64, 12, exif=exif)
    close(ran(data, T.Decode()), reference(data))
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    close(ran(data, T.Decode(apply_exif_orientation=True)), F.pil_to_tensor(turned))


SIZES: list[Any] = [32, 100, (64, 48), (300, 700), 600]


@files
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resize(name: str, size: Any, interpolation: str) -> None:
    mode = InterpolationMode(interpolation)
    wanted = F.resize(reference(FILES[name]), [size] if isinstance(size, int) else list(size), mode)
    close(ran(FILES[name], T.Decode(), T.Resize(size, interpolation)), wanted)


@files
def test_resize_is_that_of_pillow_too(name: str) -> None:
    wanted = F.pil_to_tensor(F.resize(opened(FILES[name]), [96]))
    close(ran(FILES[name], T.Decode(), T.Resize(96)), wanted)


@files
@pytest.mark.parametrize("size", [32, (64, 48), 600], ids=str)
def test_resize_without_antialias(name: str, size: Any) -> None:
    given = [size] if isinstance(size, int) else list(size)
    wanted = F.resize(reference(FILES[name]), given, antialias=False)
    close(ran(FILES[name], T.Decode(), T.Resize(size, antialias=False)), wanted)


@pytest.mark.parametrize("size", [32, (64, 48), 600], ids=str)
def test_resize_to_the_nearest(size: Any) -> None:
    data = FILES["png"]
    given = [size] if isinstance(size, int) else list(size)
    wanted = F.resize(reference(data), given, InterpolationMode.NEAREST)
    close(ran(data, T.Decode(), T.Resize(size, "nearest")), wanted)


@files
def test_resize_to_a_longest_side(name: str) -> None:
    wanted = F.resize(reference(FILES[name]), [90], max_size=100)
    close(ran(FILES[name], T.Decode(), T.Resize(90, max_size=100)), wanted)


@files
@pytest.mark.parametrize("size", [50, (61, 64), 224, (33, 800)], ids=str)
def test_center_crop(name: str, size: Any) -> None:
    given = [size, size] if isinstance(size, int) else list(size)
    close(
        ran(FILES[name], T.Decode(), T.CenterCrop(size)),
        F.center_crop(reference(FILES[name]), given),
    )


@files
@pytest.mark.parametrize("sample", range(6))
def test_random_resized_crop(name: str, sample: int) -> None:
    steps = [T.Decode(), T.RandomResizedCrop(64)]
    [crop] = drawn(FILES[name], *steps, sample=sample)
    places = [crop[key] for key in ("top", "left", "height", "width")]
    wanted = F.resized_crop(reference(FILES[name]), *places, [64, 64])
    close(ran(FILES[name], *steps, sample=sample), wanted)


@files
@pytest.mark.parametrize("padding_mode", ["constant", "edge", "reflect", "symmetric"])
def test_random_crop(name: str, padding_mode: str) -> None:
    # torchvision takes a colour only where it is used.
    fill: Any = (10, 20, 30) if padding_mode == "constant" else 0
    steps = [T.Decode(), T.RandomCrop((50, 40), 9, fill=fill, padding_mode=padding_mode)]
    [crop] = drawn(FILES[name], *steps, sample=3)
    padded = F.pad(reference(FILES[name]), crop["padding"], fill, padding_mode)
    wanted = F.crop(padded, crop["top"], crop["left"], crop["height"], crop["width"])
    close(ran(FILES[name], *steps, sample=3), wanted)


def test_random_crop_of_an_image_that_is_too_small() -> None:
    steps = [T.Decode(), T.RandomCrop(200, pad_if_needed=True)]
    [crop] = drawn(FILES["bmp"], *steps)
    padded = F.pad(reference(FILES["bmp"]), crop["padding"])
    wanted = F.crop(padded, crop["top"], crop["left"], 200, 200)
    close(ran(FILES["bmp"], *steps), wanted)


@pytest.mark.parametrize("padding_mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [3, (4, 7), (1, 2, 3, 4)], ids=str)
def test_pad(padding: Any, padding_mode: str) -> None:
    given = [padding] if isinstance(padding, int) else list(padding)
    wanted = F.pad(reference(FILES["png"]), given, 7, padding_mode)
    close(ran(FILES["png"], T.Decode(), T.Pad(padding, 7, padding_mode)), wanted)


@files
def test_flips(name: str) -> None:
    across = F.horizontal_flip(reference(FILES[name]))
    close(ran(FILES[name], T.Decode(), T.RandomHorizontalFlip(1)), across)
    down = F.vertical_flip(reference(FILES[name]))
    close(ran(FILES[name], T.Decode(), T.RandomVerticalFlip(1)), down)


JITTERS: dict[str, dict[str, Any]] = {
    "brightness": {"brightness": 0.8},
    "contrast": {"contrast": 0.8},
    "saturation": {"saturation": 0.8},
    "hue": {"hue": 0.5},
}
_TORCHVISION = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]


@pytest.mark.parametrize("kind", JITTERS)
@pytest.mark.parametrize("name", ["jpeg 4:2:0", "png", "gif"])
@pytest.mark.parametrize("sample", range(4))
def test_color_jitter(name: str, kind: str, sample: int) -> None:
    steps = [T.Decode(), T.ColorJitter(**JITTERS[kind])]
    [jitter] = drawn(FILES[name], *steps, sample=sample)
    adjust = _TORCHVISION[list(JITTERS).index(kind)]
    wanted = adjust(reference(FILES[name]), jitter[kind])
    close(ran(FILES[name], *steps, sample=sample), wanted)


@pytest.mark.parametrize("sample", range(12))
def test_color_jitter_in_its_order(sample: int) -> None:
    steps = [T.Decode(), T.ColorJitter(0.2, 0.2, 0.2, 0.05)]
    [jitter] = drawn(FILES["png"], *steps, sample=sample)
    wanted = reference(FILES["png"])
    for which in jitter["order"]:
        wanted = _TORCHVISION[which](wanted, jitter[list(JITTERS)[which]])
    close(ran(FILES["png"], *steps, sample=sample), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_to_tensor(dtype: str, layout: str) -> None:
    made = torch.from_dlpack(
        chain(T.Decode(), T.ToTensor(dtype, layout)).run(FILES["png"], 0, 0, 0)
    )
    wanted = reference(FILES["png"])
    if dtype != "uint8":
        wanted = F.to_dtype(wanted, torch.float32, scale=True).to(getattr(torch, dtype))
    if layout == "HWC":
        wanted = wanted.permute(1, 2, 0)
    assert made.dtype == wanted.dtype
    rounding = {"bfloat16": 2**-8, "float16": 2**-11}.get(dtype, 1e-6)
    torch.testing.assert_close(made, wanted, rtol=0, atol=rounding)


MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def normalized(image: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = F.to_dtype(image, torch.float32, scale=True)
    return F.normalize(scaled, MEAN, STD)  # type: ignore[no-any-return]


def close_to_normalized(ours: np.ndarray[Any, Any], image: torch.Tensor) -> None:
    """Compared where a step of 255 is a step of 255: before the division by std."""
    back = np.asarray(STD, dtype=np.float32)[:, None, None]
    close(ours * back, np.asarray(normalized(image)) * back, 1 / 255)


@files
def test_normalize(name: str) -> None:
    made = ran(FILES[name], T.Decode(), T.ToTensor(), T.Normalize(MEAN, STD))
    wanted = normalized(F.pil_to_tensor(opened(FILES[name])))
    close_to_normalized(made, reference(FILES[name]))
    if name in ("png", "bmp", "webp"):  # whose pixels are the same, so the numbers are
        np.testing.assert_allclose(made, np.asarray(wanted), atol=1e-5)


@files
@pytest.mark.parametrize("sample", range(8))
def test_imagenet_train(name: str, sample: int) -> None:
    steps = T.imagenet_train(224).transforms
    crop, flip = drawn(FILES[name], *steps, sample=sample)
    places = [crop[key] for key in ("top", "left", "height", "width")]
    wanted = F.resized_crop(reference(FILES[name]), *places, [224, 224])
    if flip["flip"]:
        wanted = F.horizontal_flip(wanted)
    close_to_normalized(ran(FILES[name], *steps, sample=sample), wanted)


@files
def test_imagenet_eval(name: str) -> None:
    wanted = F.center_crop(F.resize(reference(FILES[name]), [256]), [224, 224])
    close_to_normalized(ran(FILES[name], *T.imagenet_eval(224).transforms), wanted)


def test_sampling_rules_are_torchvisions() -> None:
    """Areas and ratios of many crops lie as those that torchvision draws."""
    from torchvision.transforms.v2 import RandomResizedCrop

    width, height, many = 500, 375, 4000
    native = chain(T.Decode(), T.RandomResizedCrop(224))
    ours = [json.loads(native.drawn(0, 0, sample, width, height))[0] for sample in range(many)]
    torch.manual_seed(0)
    theirs_step, blank = RandomResizedCrop(224), torch.zeros(3, height, width)
    theirs = [theirs_step.make_params([blank]) for _ in range(many)]
    for key in ("top", "left", "height", "width"):
        mine = np.quantile([crop[key] for crop in ours], np.linspace(0, 1, 11))
        other = np.quantile([crop[key] for crop in theirs], np.linspace(0, 1, 11))
        assert np.abs(mine - other).max() <= 0.05 * width, key


def test_numbers_of_science() -> None:
    values = np.random.default_rng(0).integers(0, 3000, (4, 8, 8)).astype(np.int16)
    steps = [T.Raw("int16", (4, 8, 8)), T.ToDtype("float32"), T.Log(1.0), T.ScaleShift(0.5, -1)]
    wanted = np.log(values.astype(np.float32) + 1) * 0.5 - 1
    np.testing.assert_allclose(ran(values.tobytes(), *steps), wanted, rtol=1e-5, atol=1e-5)
    stream = io.BytesIO()
    np.save(stream, values)
    np.testing.assert_array_equal(ran(stream.getvalue(), T.Numpy()), values)
    reshaped = ran(stream.getvalue(), T.Numpy(), T.Reshape((-1, 16)))
    np.testing.assert_array_equal(reshaped, values.reshape(-1, 16))


def test_the_test_pictures_have_contrast() -> None:
    assert pixels(100, 80).std() > 30


def photograph(width: int, height: int, kind: str, **options: Any) -> bytes:
    """Smooth, with edges: what photographs are like."""
    y, x = np.mgrid[0:height, 0:width] / 80
    waves = np.stack([np.sin(x + y), np.cos(x - 2 * y), np.sin(3 * x) * np.cos(y)], axis=2)
    pixels = (waves * 60 + 128 + 40 * (np.hypot(x - 4, y - 4) < 3)[..., None]).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("side", [100, 49, 20])
@pytest.mark.parametrize("seed", range(6))
def test_dct_scaling_looks_the_same(side: int, seed: int) -> None:
    file = photograph(641, 477, "JPEG", quality=90)
    rest = [T.RandomResizedCrop(side, scale=(0.5, 1)), T.RandomHorizontalFlip()]
    exact = chain(T.Decode(), *rest).run(file, seed, 0, 0)
    scaled = chain(T.Decode(dct_scaling=True), *rest).run(file, seed, 0, 0)
    apart = np.abs(np.asarray(exact).astype(int) - np.asarray(scaled).astype(int))
    assert apart.max() > 0, "nothing was scaled"
    assert apart.mean() < 2.5


@pytest.mark.parametrize(
    ("file", "side"),
    [
        (photograph(300, 200, "PNG"), 50),
        (photograph(300, 200, "JPEG"), 101),
        (
            photograph(
                300,
                200,
                "JPEG",
                exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
            ),
            50,
        ),
    ],
    ids=["png", "hardly smaller", "turned"],
)
def test_dct_scaling_leaves_others_alone(file: bytes, side: int) -> None:
    rest = [T.Resize((side, side))]
    exact = chain(T.Decode(apply_exif_orientation=True), *rest).run(file, 0, 0, 0)
    scaled = chain(T.Decode(apply_exif_orientation=True, dct_scaling=True), *rest).run(
        file, 0, 0, 0
    )
    np.testing.assert_array_equal(np.asarray(exact), np.asarray(scaled))
