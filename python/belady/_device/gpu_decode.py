"""Decodes JPEG files on the GPU (nvJPEG, through torchvision), if the processor is too slow.

The processor decodes as many images of a batch as it can while the GPU computes, since decoding on
the GPU takes time from training. The others go to the GPU as files. There, one kernel crops,
resizes, flips and normalises the whole batch, with what the chain draws for each sample. nvJPEG's
pixels differ slightly from libjpeg's: it interpolates colours in another way.

The processor decodes files that are no JPEG, or that nvJPEG refuses. Files that it cannot decode
either follow `on_error`.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from .. import _native
from .._pipeline.collate import collate
from .._pipeline.decode import Failure, Outcome, Work, kept_positions
from .._pipeline.feeds import Taken
from .._pipeline.transform_seed import TransformSeed
from . import kernels
from .balance import Balance, Processor
from .torch_mover import Finish, Moving, References, on_tensors, side_stream


class Decoded(NamedTuple):
    """The images of files on the GPU; None for a file that it refuses."""

    files: list[torch.Tensor]
    images: list[torch.Tensor | None]
    there: torch.cuda.Event


class GpuDecode:
    """Moves batches of files, and decodes them."""

    def __init__(
        self,
        device: torch.device,
        chain: _native.Chain,
        threads: int,
        seed: TransformSeed,
        finish: Finish,
        work: Work,
    ) -> None:
        from torchvision.io import (  # type: ignore[import-untyped]
            ImageReadMode,
            decode_jpeg,
        )

        #: Makes finished images of bytes.
        self._share = _native.DecodeSplit(chain, threads)
        self._size = image_size(chain)
        self._device = device
        self._seed = seed
        self._finish = finish
        self._work = work
        self._decoder = side_stream(device)
        self._stream = side_stream(device)
        self._references = References()
        self._balance = Balance()
        self._decode_jpeg: Any = decode_jpeg
        self._rgb = ImageReadMode.RGB
        # One thread each: batches stay in order, and the next one starts while this one is decoded.
        self._processor = Processor()
        self._gather = ThreadPoolExecutor(1, thread_name_prefix="belady-gather")
        self._gpu = ThreadPoolExecutor(1, thread_name_prefix="belady-gpu")
        self._last = ThreadPoolExecutor(1, thread_name_prefix="belady-last")

    def begin(self, taken: Taken) -> Future[Moving]:
        batch = taken[0]
        assert isinstance(batch, _native.Batch)
        windows = self._share.windows(batch, *self._drawn(batch))
        suited, unsuited = windows.split()
        share = max(0, self._balance.begin(len(windows)) - len(unsuited))
        mine = unsuited + suited[:share]
        made = self._processor.submit(self._by_processor, batch, mine)
        theirs = suited[share:]
        files = self._gather.submit(self._gathered, batch, theirs)
        images = self._gpu.submit(self._decoded, files)
        return self._last.submit(self._whole, batch, windows, theirs, mine, made, images)

    def _drawn(self, batch: _native.Batch) -> tuple[int, int, int | None]:
        """Returns seed and epoch for a batch's draws, and its number if that takes part."""
        seed = self._seed
        iteration = seed.iteration(batch.epoch, batch.iteration) if seed.repeats else None
        return seed.seed, seed.epoch(batch.epoch), iteration

    def _by_processor(
        self, batch: _native.Batch, positions: list[int]
    ) -> tuple[torch.Tensor, dict[int, str]]:
        """Returns finished images [N, H, W, 3] in pinned memory, and the failures."""
        pinned = torch.empty((len(positions), *self._size, 3), dtype=torch.uint8, pin_memory=True)
        began = time.monotonic()
        seed, epoch, iteration = self._drawn(batch)
        failed = self._share.run(batch, positions, seed, epoch, pinned.numpy(), iteration)
        seconds = time.monotonic() - began
        self._balance.took(len(positions), seconds)
        self._processor.took(len(positions), seconds)
        return pinned, {positions[at]: what for at, what in failed}

    def _whole(
        self,
        batch: _native.Batch,
        windows: _native.DecodeWindows,
        theirs: list[int],
        mine: list[int],
        made: Future[tuple[torch.Tensor, dict[int, str]]],
        decoding: Future[Decoded],
    ) -> Moving:
        """Puts a batch together from the images of the GPU and of the processor."""
        files, images, decoded_at = decoding.result()
        pinned, failed = made.result()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(decoded_at)
            refused = [at for at, image in zip(theirs, images, strict=True) if image is None]
            if refused:
                more, also = self._by_processor(batch, refused)
                pinned, failed, mine = torch.cat([pinned, more]), failed | also, mine + refused
            moved = self._moved(pinned)
            decoded = {
                at: image.data_ptr()
                for at, image in zip(theirs, images, strict=True)
                if image is not None
            }
            start, length = moved.data_ptr(), self._size[0] * self._size[1] * 3
            finished = {at: start + row * length for row, at in enumerate(mine)}
            outcome = self._outcome(batch, windows, decoded, finished, failed)
            there = self._stream.record_event()
        self._references.until(there, (files, images, pinned, moved))
        return Moving(outcome, there)

    def _decoded(self, files: Future[list[torch.Tensor]]) -> Decoded:
        """Returns the images of the GPU's decoder, and the event of their completion."""
        given = files.result()
        with torch.cuda.stream(self._decoder):
            images = self._by_gpu(given)
            return Decoded(given, images, self._decoder.record_event())

    def _gathered(self, batch: _native.Batch, positions: list[int]) -> list[torch.Tensor]:
        """Copies files to pinned memory.

        The driver would do so one by one, and block training meanwhile.
        """
        length = _native.DecodeSplit.bytes(batch, positions)
        pinned = torch.empty(length, dtype=torch.uint8, pin_memory=True)
        ends = _native.DecodeSplit.gather(batch, positions, pinned.numpy())
        return [pinned[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _by_gpu(self, files: list[torch.Tensor]) -> list[torch.Tensor | None]:
        if not files:
            return []
        try:
            return list(self._decode_jpeg(files, mode=self._rgb, device=self._device))
        except RuntimeError:
            if len(files) == 1:
                return [None]
            # One of them is damaged; bisection finds it in few calls.
            middle = len(files) // 2
            return self._by_gpu(files[:middle]) + self._by_gpu(files[middle:])

    def _outcome(
        self,
        batch: _native.Batch,
        windows: _native.DecodeWindows,
        decoded: dict[int, int],
        finished: dict[int, int],
        failed: dict[int, str],
    ) -> Outcome:
        failures = [Failure(at, None, "", failed[at]) for at in sorted(failed)]
        if failures and self._work.on_error == "raise":
            return Outcome(None, [], failures)
        kept = list(range(len(windows)))
        if failures:
            images = [failed.get(at) and failures[0] for at in kept]
            kept = kept_positions(images, self._work.on_error)
        if not kept:
            return Outcome(None, kept, failures)
        table = windows.table(kept, decoded, finished, *self._size)
        into = self._finish.empty(len(kept), *self._size)
        numbers = self._moved(torch.frombuffer(bytearray(table), dtype=torch.uint8))
        kernels.resample(numbers, into, self._finish.table)
        labels = self._work.labels(batch)
        chosen = on_tensors(collate([labels[at] for at in kept]), self._moved)
        return Outcome([self._finish.shown(into), chosen], kept, failures)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    def arrived(self, moving: Future[Moving], timeout: float | None) -> Outcome:
        return moving.result(timeout).arrived(self._device)

    def close(self) -> None:
        # Batches in flight are completed: the decoder may still read their memory.
        for pool in (self._gather, self._gpu, self._last):
            pool.shutdown(wait=True)
        self._processor.close()
        self._references.wait()


def image_size(chain: _native.Chain) -> tuple[int, int]:
    """Returns the height and width of a chain's images. Raises ValueError if they vary."""
    try:
        chain.check_window()
    except ValueError as error:
        raise ValueError(f'transform with decode="gpu": {error}') from None
    _, shape = chain.output
    if shape is None:
        raise ValueError(
            'transform with decode="gpu" has to make images of one size; '
            "add a step such as RandomResizedCrop(224)"
        )
    return shape[0], shape[1]
