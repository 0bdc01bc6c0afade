"""Whole JPEG files to the GPU's decoder (nvJPEG, through torchvision), a batch at a time.

The processor only hands over bytes. Crop, resize, flip and normalisation follow on the GPU, in
one kernel for the batch, with what the chain draws for each sample. nvJPEG's pixels are not
quite libjpeg's: it interpolates colours in another way.

What is no JPEG, or one that nvJPEG refuses, is decoded on the processor and goes the same way
from there. What cannot be decoded there either follows `on_error`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.utils.dlpack

from .. import _native
from ..collate import collate
from ..decode import Failure, Outcome, Work, kept_positions
from ..errors import BeladyError
from ..feed import Taken
from . import kernels
from .onto_torch import Finish, Held, Moving, on_tensors, side_stream

#: A window as the kernel reads it: an address and twelve numbers.
_WINDOW = struct.Struct("<q12i")


class Draws(NamedTuple):
    """What draws depend on, beside the sample."""

    seed: int
    first_epoch: int


class Image(NamedTuple):
    """An image on the device, as planes, and what is taken of it."""

    planes: torch.Tensor
    window: list[int]


class GpuDecode:
    """Moves batches of files, and decodes them on the way."""

    def __init__(
        self,
        device: torch.device,
        steps: Sequence[dict[str, Any]],
        draws: Draws,
        finish: Finish,
        work: Work,
    ) -> None:
        from torchvision.io import (  # type: ignore[import-untyped]
            ImageReadMode,
            decode_jpeg,
        )

        #: All steps before the tail: what it makes is a finished image of bytes.
        self._chain = _native.Chain(json.dumps(list(steps)))
        self._turns = bool(steps[0]["apply_exif_orientation"])
        self._most_pixels = int(steps[0]["max_pixels"])
        self._device = device
        self._draws = draws
        self._finish = finish
        self._work = work
        self._stream = side_stream(device)
        self._held = Held()
        self._decode_jpeg: Any = decode_jpeg
        self._rgb = ImageReadMode.RGB
        self._size = image_size(self._chain)

    def begin(self, taken: Taken) -> Moving:
        batch = taken[0]
        assert isinstance(batch, _native.Batch)
        with torch.cuda.stream(self._stream):
            images = self._images(batch)
            outcome = self._outcome(batch, images)
            there = self._stream.record_event()
        self._held.until(there, (batch, images))
        return Moving(outcome, there)

    def _images(self, batch: _native.Batch) -> list[Image | Failure]:
        """Every image of the batch, in order."""
        samples, ids = batch.samples(), batch.ids
        epoch = self._draws.first_epoch + batch.epoch
        windows = [
            self._window(sample, epoch, id_) for sample, id_ in zip(samples, ids, strict=True)
        ]
        suited = [at for at, window in enumerate(windows) if window is not None]
        files = [torch.frombuffer(samples[at], dtype=torch.uint8) for at in suited]
        decoded = dict(zip(suited, self._by_gpu(files), strict=True))
        images: list[Image | Failure] = []
        for at, window in enumerate(windows):
            planes = decoded.get(at)
            if planes is not None and window is not None:
                images.append(Image(planes, window))
            else:
                images.append(self._by_processor(samples[at], epoch, ids[at], at))
        return images

    def _window(self, sample: _native.Sample, epoch: int, id_: int) -> list[int] | None:
        """What is taken of an image, if the GPU's decoder is to be asked for it."""
        try:
            kind, width, height, channels, upright = _native.probe(sample)
            turned = self._turns and not upright
            if kind != "jpeg" or channels not in (1, 3) or turned or width * height > self._most_pixels:
                return None
            return self._chain.window(self._draws.seed, epoch, id_, width, height)
        except BeladyError:
            return None

    def _by_gpu(self, files: list[torch.Tensor]) -> list[torch.Tensor | None]:
        if not files:
            return []
        try:
            return list(self._decode_jpeg(files, mode=self._rgb, device=self._device))
        except RuntimeError:
            if len(files) == 1:
                return [None]
            # One of them is damaged; halves find it in few calls.
            middle = len(files) // 2
            return self._by_gpu(files[:middle]) + self._by_gpu(files[middle:])

    def _by_processor(
        self, sample: _native.Sample, epoch: int, id_: int, at: int
    ) -> Image | Failure:
        try:
            array = self._chain.run(sample, self._draws.seed, epoch, id_)
        except BeladyError as error:
            return Failure(at, None, "", str(error))
        pixels: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
        height, width = self._size
        planes = pixels.permute(2, 0, 1).contiguous().to(self._device)
        return Image(planes, [0, 0, width, height, width, height, 0, 0, 0, 0])

    def _outcome(self, batch: _native.Batch, images: list[Image | Failure]) -> Outcome:
        failures = [image for image in images if isinstance(image, Failure)]
        if failures and self._work.on_error == "raise":
            return Outcome(None, [], failures)
        kept = kept_positions(images, self._work.on_error)
        chosen = [images[at] for at in kept]
        if not chosen:
            return Outcome(None, kept, failures)
        into = self._finish.room(len(chosen), *self._size)
        kernels.resample(self._windows(chosen), into, self._finish.table)
        labels = self._work.labels(batch)
        labels = [labels[at] for at in kept]
        value = [self._finish.shown(into), on_tensors(collate(labels), self._moved)]
        return Outcome(value, kept, failures)

    def _windows(self, images: Sequence[Any]) -> torch.Tensor:
        """What is taken of each image, as the kernel reads it."""
        numbers = bytearray(len(images) * _WINDOW.size)
        for at, (planes, window) in enumerate(images):
            _WINDOW.pack_into(
                numbers, at * _WINDOW.size, planes.data_ptr(), *planes.shape[1:], *window
            )
        return self._moved(torch.frombuffer(numbers, dtype=torch.uint8))

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    def arrived(self, moving: Moving) -> Outcome:
        return moving.arrived(self._device)

    def close(self) -> None:
        self._held.wait()


def image_size(chain: _native.Chain) -> tuple[int, int]:
    """Height and width of what comes out; ValueError if a kernel cannot make it."""
    try:
        chain.check_window()
    except ValueError as error:
        raise ValueError(f'transform with decode="gpu": {error}') from None
    _, shape = chain.output
    if shape is None:
        raise ValueError(
            'transform with decode="gpu": images have to become equally large; '
            "add a step such as RandomResizedCrop(224)"
        )
    return shape[0], shape[1]
