"""JPEG files to images in memory of a GPU: its hardware, and torchvision for what that does not take."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch

from .. import _native
from .nvjpeg import File, Hardware, Image, NvjpegError, open_hardware

#: Of the tables of `Windows`: bytes of a row, and where the sizes of an image are in it.
_ROW = struct.Struct("<8xqi44x")
#: Images begin at such addresses.
_ALIGNED = 256


class Files(NamedTuple):
    """Files in pinned memory: the driver would copy them there one by one, and keep training from it
    meanwhile."""

    memory: torch.Tensor
    #: Where each ends and the next begins.
    ends: list[int]
    #: Width and height of each image.
    sizes: list[tuple[int, int]]

    @classmethod
    def gathered(cls, batch: _native.Batch, positions: list[int], windows: _native.Windows) -> Files:
        """Some samples of a batch, which are JPEG files that a GPU can decode."""
        length = _native.Share.bytes(batch, positions)
        memory = torch.empty(length, dtype=torch.uint8, pin_memory=True)
        ends = _native.Share.gather(batch, positions, memory.numpy())
        table = windows.table(positions, dict.fromkeys(positions, 0), {}, 1, 1)
        sizes = [(width, plane // width) for plane, width in _ROW.iter_unpack(table)]
        return cls(memory, ends, sizes)

    def spans(self) -> list[tuple[int, int]]:
        """Beginning and end of each."""
        return list(zip([0, *self.ends][:-1], self.ends, strict=True))


class Images(NamedTuple):
    """Images in planes, by their addresses: None for one that the GPU refuses."""

    addresses: list[int | None]
    #: What lies there.
    memory: list[torch.Tensor]


class GpuImages:
    """Makes images of files, one batch after the other, in one thread."""

    def __init__(self, device: torch.device, batch: int) -> None:
        from torchvision.io import (  # type: ignore[import-untyped]
            ImageReadMode,
            decode_jpeg,
        )

        self._device = device
        self._decode_jpeg: Any = decode_jpeg
        self._rgb = ImageReadMode.RGB
        self._multiple = max(1, batch // 16)
        with torch.cuda.device(device):
            self._hardware: Hardware | None = open_hardware(self._multiple)

    def rounded(self, images: int) -> int:
        """As many images, or a few more, as the GPU decodes without waste."""
        return images if self._hardware is None else images + -images % self._multiple

    def of(self, files: Files, stream: torch.cuda.Stream) -> Images:
        """On this stream, which is the current one."""
        images = Images([None] * len(files.sizes), [])
        taken = self._by_hardware(files, images, stream)
        rest = [at for at in range(len(files.sizes)) if at not in taken]
        spans = files.spans()
        made = self._by_torchvision([files.memory[slice(*spans[at])] for at in rest])
        for at, image in zip(rest, made, strict=True):
            if image is not None:
                images.addresses[at] = image.data_ptr()
                images.memory.append(image)
        return images

    def _by_hardware(self, files: Files, images: Images, stream: torch.cuda.Stream) -> set[int]:
        """Which ones it made."""
        if self._hardware is None:
            return set()
        start = files.memory.data_ptr()
        given = [File(start + begin, end - begin) for begin, end in files.spans()]
        taken = [at for at, file in enumerate(given) if self._hardware.takes(file)]
        if not taken:
            return set()
        sizes = [-(-3 * files.sizes[at][0] * files.sizes[at][1] // _ALIGNED) * _ALIGNED for at in taken]
        room = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        places, place = [], room.data_ptr()
        for at, size in zip(taken, sizes, strict=True):
            places.append(Image(place, *files.sizes[at]))
            place += size
        try:
            self._hardware.decode([given[at] for at in taken], places, stream.cuda_stream)
        except NvjpegError:
            return set()  # torchvision finds out which one it was
        finally:
            # Its buffers serve the next batch.
            stream.synchronize()
        images.memory.append(room)
        for at, image in zip(taken, places, strict=True):
            images.addresses[at] = image.address
        return set(taken)

    def _by_torchvision(self, files: list[torch.Tensor]) -> list[torch.Tensor | None]:
        if not files:
            return []
        try:
            return list(self._decode_jpeg(files, mode=self._rgb, device=self._device))
        except RuntimeError:
            if len(files) == 1:
                return [None]
            # One of them is damaged; halves find it in few calls.
            middle = len(files) // 2
            return self._by_torchvision(files[:middle]) + self._by_torchvision(files[middle:])

    def close(self) -> None:
        """Nothing may be on its way."""
        if self._hardware is not None:
            with torch.cuda.device(self._device):
                self._hardware.close()
            self._hardware = None
