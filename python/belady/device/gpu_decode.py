"""Whole JPEG files to the GPU's decoder (nvJPEG, through torchvision), a batch at a time.

The processor only hands over bytes. Crop, resize, flip and normalisation follow on the GPU, in
one kernel for the batch, with what the chain draws for each sample. nvJPEG's pixels are not
quite libjpeg's: it interpolates colours in another way.

What is no JPEG, or one that nvJPEG refuses, is decoded on the processor and goes the same way
from there. What cannot be decoded there either follows `on_error`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from .. import _native
from ..decode import Failure, Outcome, kept_positions
from ..feed import Taken
from . import kernels
from .onto_torch import Finish, Held, Moving

#: An image on the device, as planes, or why there is none.
Decoded = torch.Tensor | Failure


class GpuDecode:
    """Moves batches of files, and decodes them on the way."""

    def __init__(
        self,
        device: torch.device,
        steps: Sequence[dict[str, Any]],
        seed: int,
        finish: Finish,
        on_error: str,
    ) -> None:
        from torchvision.io import ImageReadMode, decode_jpeg

        self._device = device
        self._chain = _native.Chain(json.dumps(list(steps)))
        self._turns = bool(steps[0]["apply_exif_orientation"])
        self._most_pixels = int(steps[0]["max_pixels"])
        self._on_processor = _native.Chain(json.dumps([steps[0]]))
        self._seed = seed
        self._finish = finish
        self._on_error = on_error
        self._stream = torch.cuda.Stream(device)
        self._held = Held()
        self._decode_jpeg: Any = decode_jpeg
        self._rgb = ImageReadMode.RGB
        self._size = window_size(self._chain)

    def begin(self, taken: Taken) -> Moving:
        batch = taken[0]
        with torch.cuda.stream(self._stream):
            images = self._images(batch)
            outcome = self._outcome(batch, images)
            there = self._stream.record_event()
        self._held.until(there, (batch, images))
        return Moving(outcome, there)

    def _images(self, batch: _native.Batch) -> list[Decoded]:
        """Every image of the batch, in order."""
        samples = batch.samples()
        images: list[Decoded | None] = [None] * len(samples)
        suited = [at for at, sample in enumerate(samples) if self._suits(sample)]
        files = [torch.frombuffer(samples[at], dtype=torch.uint8) for at in suited]
        for at, image in zip(suited, self._by_gpu(files), strict=True):
            images[at] = image
        return [
            image if image is not None else self._by_processor(batch, samples[at], at)
            for at, image in enumerate(images)
        ]

    def _suits(self, sample: _native.Sample) -> bool:
        """Whether the GPU's decoder should be asked."""
        try:
            kind, width, height, channels, orientation = _native.probe(sample)
        except ValueError:
            return False
        turned = self._turns and orientation > 1
        return kind == "jpeg" and channels in (1, 3) and not turned and width * height <= self._most_pixels

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

    def _by_processor(self, batch: _native.Batch, sample: _native.Sample, at: int) -> Decoded:
        try:
            array = self._on_processor.run(sample, self._seed, batch.epoch, batch.ids[at])
        except Exception as error:
            return Failure(at, error, "")
        pixels: torch.Tensor = torch.from_dlpack(array)
        return pixels.permute(2, 0, 1).contiguous().to(self._device)

    def _outcome(self, batch: _native.Batch, images: list[Decoded]) -> Outcome:
        failures = [image for image in images if isinstance(image, Failure)]
        if failures and self._on_error == "raise":
            return Outcome(None, [], failures)
        kept = kept_positions(images, self._on_error) if failures else list(range(len(images)))
        if not kept:
            return Outcome(None, kept, failures)
        ids = batch.ids
        windows = self._windows(batch.epoch, [(ids[at], images[at]) for at in kept])
        into = self._finish.room(len(kept), 3, *self._size)
        kernels.resample(windows, into, self._finish.means, self._finish.deviations)
        labels = torch.frombuffer(bytearray(batch.labels_bytes()), dtype=torch.int64)
        if failures:
            labels = labels[kept]
        value = (self._finish.shown(into), labels.to(self._device, non_blocking=True))
        return Outcome(value, kept if failures else None, failures)

    def _windows(self, epoch: int, images: Sequence[tuple[int, Any]]) -> torch.Tensor:
        """What is taken of each image, as the kernel reads it."""
        places = [(sample, image.data_ptr(), *image.shape[1:]) for sample, image in images]
        numbers = self._chain.windows(self._seed, epoch, places)
        return torch.frombuffer(bytearray(numbers), dtype=torch.uint8).to(self._device)

    def arrived(self, moving: Moving) -> Outcome:
        return moving.arrived(self._device)

    def close(self) -> None:
        self._held.wait()


def window_size(chain: _native.Chain) -> tuple[int, int]:
    """Height and width of what comes out."""
    _, shape = chain.output
    if shape is None or len(shape) != 3:
        raise ValueError(
            'decode="gpu" makes images of one size; end the crops with one, such as RandomResizedCrop'
        )
    height, width = (shape[1], shape[2]) if shape[0] == 3 else (shape[0], shape[1])
    return height, width
