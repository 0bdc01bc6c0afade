"""Batches onto a device. What needs a GPU is skipped where there is none; the rest runs the same
code with the processor as the device."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from PIL import Image

import belady
from belady import transforms as T

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: torch finds no CUDA device"
)
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]


def jpeg(seed: int, width: int, height: int) -> bytes:
    """A smooth picture of any size."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    file = io.BytesIO()
    small.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=92)
    return file.getvalue()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> belady.Dataset:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(30):
        place = folder / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        (place / f"{number:02}.jpg").write_bytes(jpeg(number, 70 + number, 90 - number))
    return belady.open(folder)


def batches(data: belady.Dataset, **arguments: Any) -> list[tuple[Any, ...]]:
    """One epoch; tensors as copies on the processor."""
    arguments.setdefault("transform", T.imagenet_train(24))
    with belady.DataLoader(
        data, batch_size=8, shuffle=True, seed=0, cache="ram:1MiB", **arguments
    ) as loader:
        return [
            tuple(
                field.cpu().clone() if isinstance(field, torch.Tensor) else field for field in batch
            )
            for batch in loader
        ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("memory_format", [None, "channels_last"])
def test_a_device_gets_the_numbers_that_the_processor_makes(
    pictures: belady.Dataset, device: str, dtype: str, memory_format: str | None
) -> None:
    chain = T.imagenet_train(24, dtype=dtype)
    expected = batches(pictures, transform=chain)
    given = batches(pictures, transform=chain, device=device, memory_format=memory_format)
    assert len(given) == len(expected) == 4
    for (images, labels), (other, others) in zip(given, expected, strict=True):
        assert images.dtype == other.dtype and torch.equal(images, other)
        assert torch.equal(labels, others)
        if memory_format is not None and len(images) > 1:
            assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "chain",
    [
        [T.Decode(), T.CenterCrop(20), T.ToTensor()],
        [
            T.Decode(mode="GRAY"),
            T.CenterCrop(20),
            T.ToTensor("float16", "HWC"),
            T.Normalize(0.5, 0.2),
        ],
        [T.Decode(), T.CenterCrop(20), T.ToTensor("uint8")],
        [T.Decode(), T.CenterCrop(20)],
    ],
)
def test_any_tail_of_a_chain_gives_the_same_numbers(
    pictures: belady.Dataset, device: str, chain: list[Any]
) -> None:
    expected = batches(pictures, transform=chain)
    for (images, _), (other, _) in zip(
        batches(pictures, transform=chain, device=device), expected, strict=True
    ):
        assert images.shape == other.shape and torch.equal(images, other)


@pytest.mark.parametrize("device", DEVICES)
def test_fields_functions_and_lists_arrive(pictures: belady.Dataset, device: str) -> None:
    fields = {"image": T.imagenet_eval(16, resize=20), "file": T.Bytes(), "label": T.Label()}
    with belady.DataLoader(pictures, batch_size=8, transform=fields, device=device) as loader:
        batch = next(iter(loader))
    assert batch["image"].device.type == device and batch["label"].device.type == device
    assert batch["file"][0][:2] == b"\xff\xd8"
    function = [T.Decode(), T.CenterCrop(16), lambda image: image[::-1].copy(), T.ToTensor()]
    expected = batches(pictures, transform=function)
    for (images, _), (other, _) in zip(
        batches(pictures, transform=function, device=device), expected, strict=True
    ):
        assert torch.equal(images, other)
    sizes = batches(pictures, transform=[T.Decode(), T.ToTensor()], device=device)
    assert len({tuple(image.shape) for image in sizes[0][0]}) > 1
    assert {image.device.type for image in sizes[0][0]} == {device}


@pytest.mark.parametrize("device", DEVICES)
def test_batches_on_a_device_know_their_samples_and_can_be_resumed(
    pictures: belady.Dataset, device: str
) -> None:
    def loader() -> belady.DataLoader:
        return belady.DataLoader(
            pictures, batch_size=8, shuffle=True, transform=T.imagenet_train(24), device=device
        )

    whole = loader()
    first = iter(whole)
    seen = [next(first) for _ in range(2)]
    assert seen[0].ids != seen[1].ids and len(seen[0].paths) == 8
    state = whole.state_dict()
    rest = [batch[0].cpu() for batch in first]
    again = loader()
    again.load_state_dict(state)
    resumed = [batch[0].cpu() for batch in again]
    assert len(rest) == len(resumed) == 2
    assert all(torch.equal(one, other) for one, other in zip(rest, resumed, strict=True))
    whole.close()
    again.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_damaged_file_follows_on_error(tmp_path: Path, device: str, on_error: str) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number, 40, 40))
    (tmp_path / "3.jpg").write_bytes(b"no picture")
    data = belady.open(tmp_path, format="flat")
    chain = T.imagenet_eval(16, resize=20)
    with belady.DataLoader(
        data, batch_size=4, transform=chain, device=device, on_error=on_error
    ) as loader:
        epoch = iter(loader)
        if on_error == "raise":
            with pytest.raises(belady.DecodeError, match=r"3\.jpg"):
                next(epoch)
            assert next(epoch)[0].shape[0] == 4
        else:
            first = next(epoch)
            assert len(first[0]) == len(first.ids) == (3 if on_error == "skip" else 4)


def test_jax_gets_the_same_numbers(pictures: belady.Dataset) -> None:
    expected = batches(pictures)
    with belady.DataLoader(
        pictures,
        batch_size=8,
        shuffle=True,
        seed=0,
        transform=T.imagenet_train(24),
        device=jax.devices()[0],
    ) as loader:
        for (images, labels), (other, others) in zip(loader, expected, strict=True):
            assert isinstance(images, jax.Array) and isinstance(labels, jax.Array)
            np.testing.assert_array_equal(np.asarray(images), other.numpy())
            np.testing.assert_array_equal(np.asarray(labels), others.numpy())


def test_jax_gets_bfloat16_where_torch_is_imported_too(pictures: belady.Dataset) -> None:
    chain = [T.Decode(), T.CenterCrop(8), T.ToTensor("bfloat16"), T.ScaleShift(2)]
    expected = batches(pictures, transform=chain)[0][0]
    with belady.DataLoader(
        pictures, batch_size=8, shuffle=True, seed=0, transform=chain, device=jax.devices()[0]
    ) as loader:
        images, _ = next(iter(loader))
    assert images.dtype == jax.numpy.bfloat16
    np.testing.assert_array_equal(np.asarray(images.astype("float32")), expected.float().numpy())


@pytest.mark.parametrize("collate_fn", [None, list])
def test_a_memory_format_without_images_of_floats_is_refused(
    pictures: belady.Dataset, collate_fn: Any
) -> None:
    chain = [T.Decode(), T.CenterCrop(8), T.ToTensor("float32" if collate_fn else "uint8")]
    with pytest.raises(
        ValueError, match="memory_format is for images that become floats on the device"
    ):
        belady.DataLoader(
            pictures,
            transform=chain,
            collate_fn=collate_fn,
            device="cpu",
            memory_format="channels_last",
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"device": "nonsense"}, "device has to be one such as"),
        ({"device": 1.5}, "device has to be one such as"),
        ({"memory_format": "channels_last"}, 'add device="cuda"'),
        ({"memory_format": "planes", "device": "cpu"}, "memory_format has to be"),
        ({"memory_format": "channels_last", "device": jax.devices()[0]}, "for devices of torch"),
        ({"decode": "gpu"}, 'add device="cuda"'),
        ({"decode": "gpu", "device": "cpu"}, "needs torch with CUDA"),
    ],
)
def test_a_wrong_transform_raises_when_the_loader_is_made(
    pictures: belady.Dataset, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        belady.DataLoader(pictures, transform=T.imagenet_train(24), **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_an_error(pictures: belady.Dataset) -> None:
    with pytest.raises(ValueError, match="torch finds no GPU"):
        belady.DataLoader(pictures, transform=T.imagenet_train(24), device="cuda")


@pytest.mark.parametrize(("used", "given", "found"), [
    (False, None, "32"), (False, "1", "1"), (True, None, None),
])  # fmt: skip
def test_streams_get_separate_queues_if_cuda_is_not_in_use(
    monkeypatch: pytest.MonkeyPatch,
    pictures: belady.Dataset,
    used: bool,
    given: str | None,
    found: str | None,
) -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    monkeypatch.setenv(name, given or "")
    if given is None:
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    with pytest.raises(ValueError, match="needs torch with CUDA"):
        belady.DataLoader(pictures, transform=T.imagenet_train(24), decode="gpu", device="cpu")
    assert os.environ.get(name) == found


@needs_gpu
def test_memory_that_cannot_be_pinned_makes_no_kernel_fail() -> None:
    from belady._device.torch_mover import pin_or_unpin

    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    place = memory.data_ptr(), memory.numel()
    pin_or_unpin(*place, True)
    with pytest.warns(UserWarning, match="could not be pinned"):
        pin_or_unpin(*place, True)
    assert torch.ones(3, device="cuda").add(1).tolist() == [2, 2, 2]
    for _ in range(2):
        pin_or_unpin(*place, False)
        assert torch.ones(3, device="cuda").add(1).tolist() == [2, 2, 2]


@needs_gpu
@pytest.mark.parametrize("chain", [T.imagenet_train(24), T.imagenet_eval(24, resize=30)])
def test_images_that_a_gpu_decodes_look_the_same(pictures: belady.Dataset, chain: Any) -> None:
    expected = batches(pictures, transform=chain)
    given = batches(pictures, transform=chain, device="cuda", decode="gpu")
    for (images, labels), (other, others) in zip(given, expected, strict=True):
        assert torch.equal(labels, others)
        # nvJPEG interpolates colours in another way; a step of a byte is about 0.017 here.
        assert (images - other).abs().mean() < 0.05
        assert (images - other).abs().max() < 0.6


@needs_gpu
def test_the_processor_decodes_what_the_gpu_cannot(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number, 50 + number, 60))
    picture = Image.open(io.BytesIO(jpeg(9, 64, 48)))
    picture.save(tmp_path / "6.jpg", "PNG")
    picture.convert("CMYK").save(tmp_path / "7.jpg", "JPEG")
    data = belady.open(tmp_path, format="flat")
    chain = T.imagenet_eval(32, resize=40)
    with belady.DataLoader(data, batch_size=8, transform=chain) as loader:
        expected = next(iter(loader))[0].clone()
    with belady.DataLoader(
        data, batch_size=8, transform=chain, device="cuda", decode="gpu"
    ) as loader:
        given = next(iter(loader))[0].cpu()
    assert torch.equal(given[6:], expected[6:])


@needs_gpu
def test_progressive_and_grey_files_are_decoded_beside_others(tmp_path: Path) -> None:
    for number in range(48):
        picture = Image.open(io.BytesIO(jpeg(number, 90 + number, 70)))
        if number % 5 == 1:
            picture = picture.convert("L")
        picture.save(tmp_path / f"{number:02}.jpg", "JPEG", quality=95, progressive=number % 3 == 1)
    data = belady.open(tmp_path, format="flat")
    chain = T.imagenet_eval(32, resize=40)
    with belady.DataLoader(data, batch_size=48, transform=chain) as loader:
        expected = next(iter(loader))[0].clone()
    with belady.DataLoader(
        data, batch_size=48, transform=chain, device="cuda", decode="gpu"
    ) as loader:
        for _ in range(12):
            given = next(iter(loader))[0].cpu()
            assert (given - expected).abs().mean() < 0.05
            assert (given - expected).abs().max() < 0.6


@needs_gpu
@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_file_that_neither_can_decode_follows_on_error(tmp_path: Path, on_error: str) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number, 40, 40))
    whole = jpeg(3, 400, 400)
    (tmp_path / "3.jpg").write_bytes(whole[: len(whole) // 4])
    (tmp_path / "5.jpg").write_bytes(b"")
    data = belady.open(tmp_path, format="flat")
    with belady.DataLoader(
        data,
        batch_size=4,
        transform=T.imagenet_eval(16, resize=20),
        device="cuda",
        decode="gpu",
        on_error=on_error,
    ) as loader:
        if on_error == "raise":
            epoch = iter(loader)
            with pytest.raises(belady.DecodeError, match=r"[35]\.jpg"):
                next(epoch)
        else:
            sizes = [len(batch[0]) for batch in loader]
            assert sizes == ([3, 3] if on_error == "skip" else [4, 4])
