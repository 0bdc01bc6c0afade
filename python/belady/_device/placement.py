"""The arguments `device=`, `memory_format=` and `decode="gpu"` of a loader."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from .._pipeline.decode import Work
from .._pipeline.feeds import Feed
from .._pipeline.fields import Transform
from .._pipeline.transform_seed import TransformSeed
from .device_feed import DeviceFeed, Mover
from .tail import Tail, split

#: Batches that are in flight to the device, or wait there.
_AHEAD = 5


class Placement(NamedTuple):
    """A device, and the work that is done there."""

    #: A device of torch, or a device or sharding of JAX.
    device: Any
    #: "channels_last", or None for torch's own.
    memory_format: str | None
    #: The transform whose files the GPU decodes, if any.
    gpu_decode: Transform | None
    #: The tails of a batch's fields, by index or name.
    tails: dict[Any, Tail]

    @property
    def is_jax(self) -> bool:
        """Whether the device is one of JAX."""
        return _is_of_jax(self.device)

    @property
    def spared_cores(self) -> int:
        """Cores that are left to the training loop and to autograd's thread, which feed the device.

        Without them a GPU idles within a step: with all of 16 cores decoding, a ResNet-18 lost a
        fifth of its speed on an H200, and nothing with two spared cores.
        """
        return 2 if self.is_jax or self.device.type != "cpu" else 0

    def on_block(self) -> Any:
        """Returns the function that pins the memory of batches, if CUDA needs it."""
        if self.is_jax or self.device.type != "cuda":
            return None
        from .torch_mover import pin_or_unpin

        return pin_or_unpin

    def feed(self, inner: Feed, work: Work, threads: int, seed: TransformSeed) -> DeviceFeed:
        """Returns a feed of the batches of `inner` on the device."""
        feed = DeviceFeed(inner, self._mover(work, threads, seed), _AHEAD)
        feed.start()
        return feed

    def _mover(self, work: Work, threads: int, seed: TransformSeed) -> Mover:
        if self.is_jax:
            from .jax_mover import JaxMover

            return JaxMover(self.device, self.tails)
        from .torch_mover import Finish, TorchMover, memory_format

        layout = memory_format(self.memory_format)
        if self.gpu_decode is None:
            return TorchMover(self.device, self.tails, layout)
        from .gpu_decode import GpuDecode

        whole = self.gpu_decode.fields[0].chain.whole
        assert whole is not None
        finish = Finish(self.tails[0], self.device, layout)
        return GpuDecode(self.device, whole, threads, seed, finish, work)


def placed(
    device: object,
    memory_format: object,
    transform: Transform | None,
    *,
    on_gpu: bool,
    collates: bool,
) -> tuple[Placement | None, Transform | None]:
    """Returns where batches go, and the part of the transform for the processor."""
    if device is None:
        for name, value in (
            ("memory_format", memory_format),
            ("decode", "gpu" if on_gpu else None),
        ):
            if value is not None:
                raise ValueError(f'{name}="{value}" needs a device; add device="cuda"')
        return None, transform
    if on_gpu:
        _separate_queues()
    found = _device(device)
    format_ = _memory_format(memory_format)
    if format_ is not None and _is_of_jax(found):
        raise ValueError('memory_format is for devices of torch; JAX takes ToTensor(layout="HWC")')
    if on_gpu:
        return _gpu_decoding(found, format_, transform, collates)
    tails: dict[Any, Tail] = {}
    if transform is not None and not collates:
        # A user's collate_fn gets the complete result of the chain.
        transform, tails = transform.split(split)
    if format_ is not None and not tails:
        raise ValueError(
            "memory_format is for images that become floats on the device: end the transform with "
            "ToTensor and perhaps Normalize, without a collate_fn"
        )
    return Placement(found, format_, None, tails), transform


def _gpu_decoding(
    device: Any, memory_format: str | None, transform: Transform | None, collates: bool
) -> tuple[Placement, None]:
    from . import kernels
    from .gpu_decode import image_size

    if getattr(device, "type", None) != "cuda" or not kernels.available(device):
        raise ValueError(
            f'decode="gpu" needs torch with CUDA and NVRTC, and device="cuda", not {device}'
        )
    if transform is None or not transform.is_one_native_image or collates:
        raise ValueError(
            'decode="gpu" makes one image of a whole sample, beside its label: give a transform '
            "such as belady.transforms.imagenet_train(224), without fields, functions and "
            "collate_fn"
        )
    try:
        import torchvision.io  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        raise ValueError('decode="gpu" uses torchvision: pip install torchvision') from None
    rest, tails = transform.split(split)
    if 0 not in tails:
        raise ValueError('decode="gpu" gives floats; end the transform with ToTensor and Normalize')
    whole = rest.fields[0].chain.whole
    assert whole is not None
    image_size(whole)
    return Placement(device, memory_format, rest, tails), None


def _separate_queues() -> None:
    """Gives CUDA's streams separate queues, if CUDA is not in use yet.

    By default eight queues serve all streams. nvJPEG then waits behind training steps in the same
    queue, and they behind it.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def _is_of_jax(device: object) -> bool:
    return type(device).__module__.partition(".")[0] in ("jax", "jaxlib")


def _device(device: Any) -> Any:
    if _is_of_jax(device):
        return device
    try:
        import torch
    except ImportError:
        raise ValueError("device is one of torch or JAX; install torch, or leave it out") from None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'device has to be one such as "cuda" or "cuda:1": {reason}') from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f'device="{found}", but torch finds no GPU; leave it out, or see nvidia-smi'
        )
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return found


def _memory_format(value: object) -> str | None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and value in (torch.channels_last, torch.contiguous_format):
        return "channels_last" if value == torch.channels_last else None
    if value in (None, "channels_last"):
        return None if value is None else "channels_last"
    raise ValueError(f'memory_format has to be "channels_last" or None, not {value!r}')
