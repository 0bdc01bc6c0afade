"""The hardware that decodes JPEG files in some GPUs (A100, H100 and later), through nvJPEG itself.

torchvision brings the library and can call it. Its own call makes a tensor of every image and starts
anew for every batch. On an H200 that halved the speed of the decoder, and training beside it lost
three times as much. So the library that torchvision has loaded is called here; where there is none,
or a GPU has no such hardware, `open_hardware` says so.
"""

from __future__ import annotations

import ctypes
import re
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

_HARDWARE = 3  # NVJPEG_BACKEND_HARDWARE
_PLANES = 3  # NVJPEG_OUTPUT_RGB: red, green and blue, one after the other
_PART = ctypes.c_void_p


class NvjpegError(Exception):
    """nvJPEG refused; what it says is of a whole batch."""


class File(NamedTuple):
    """A JPEG file in pinned memory."""

    address: int
    length: int


class Image(NamedTuple):
    """Where an image in planes goes in memory of the GPU."""

    address: int
    width: int
    height: int


class Hardware:
    """Decodes batches, one after the other. For one thread, whose device is current."""

    def __init__(self, library: ctypes.CDLL, quick: ctypes.PyDLL, multiple: int) -> None:
        self._library = library
        #: The same library, for what is over at once: hundreds of calls a batch, each of which let go of
        #: Python's lock, would interrupt the training loop as often.
        self._quick = quick
        #: Batches are filled up to a multiple of it: each size has buffers of its own, made once.
        #: To make them anew, nvJPEG would allocate memory, for which CUDA stops all that runs.
        self._multiple = multiple
        self._states: dict[int, _PART] = {}
        self._handle = _PART()
        self._call("nvjpegCreateEx", _HARDWARE, None, None, ctypes.c_uint(0), ctypes.byref(self._handle))
        self._header = _PART()
        self._call("nvjpegJpegStreamCreate", self._handle, ctypes.byref(self._header))

    def takes(self, file: File) -> bool:
        """Whether the hardware decodes such files: those that are progressive it does not."""
        place = _PART(file.address), ctypes.c_size_t(file.length), self._header
        if self._quick.nvjpegJpegStreamParseHeader(self._handle, *place) != 0:
            return False
        no = ctypes.c_int(-1)
        status = self._quick.nvjpegDecodeBatchedSupported(self._handle, self._header, ctypes.byref(no))
        return status == 0 and no.value == 0

    def decode(self, files: list[File], images: list[Image], stream: int) -> None:
        """Begins to decode on a stream of CUDA. The next call has to wait until this one is done."""
        more = -len(files) % self._multiple
        # The last one is decoded again, to the same place.
        files, images = files + files[-1:] * more, images + images[-1:] * more
        count = len(files)
        addresses = (ctypes.c_void_p * count)(*(file.address for file in files))
        lengths = (ctypes.c_size_t * count)(*(file.length for file in files))
        planes = (ctypes.c_size_t * (8 * count))(*chain.from_iterable(map(_planes, images)))
        state = self._state(count)
        try:
            self._call("nvjpegDecodeBatched", self._handle, state, addresses, lengths, planes, _PART(stream))
        except NvjpegError:
            # It may have been left in any state.
            self._library.nvjpegJpegStateDestroy(self._states.pop(count))
            raise

    def _state(self, count: int) -> _PART:
        if count not in self._states:
            state = _PART()
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(state))
            self._states[count] = state
            self._call("nvjpegDecodeBatchedInitialize", self._handle, state, count, 1, _PLANES)
        return self._states[count]

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise NvjpegError(f"{name} answered {status}")

    def close(self) -> None:
        """Frees what it holds; nothing may be on its way."""
        for state in self._states.values():
            self._library.nvjpegJpegStateDestroy(state)
        self._states.clear()
        self._library.nvjpegJpegStreamDestroy(self._header)
        self._library.nvjpegDestroy(self._handle)


def open_hardware(multiple: int) -> Hardware | None:
    """The hardware of the current device, if it has any and the library is loaded."""
    path = loaded_library(Path("/proc/self/maps"))
    if path is None:
        return None
    try:
        return Hardware(ctypes.CDLL(path), ctypes.PyDLL(path), multiple)
    except (OSError, AttributeError, NvjpegError):
        # Another library than ours would be, or a GPU without the hardware.
        return None


def loaded_library(maps: Path) -> str | None:
    """Where the nvJPEG lies that this process has loaded."""
    try:
        found = re.search(r"/.*/libnvjpeg\.(\w+\.)*so[.\w]*$", maps.read_text(), re.MULTILINE)
    except OSError:
        return None
    return found.group() if found else None


def _planes(image: Image) -> tuple[int, ...]:
    """`nvjpegImage_t`: the addresses of four planes, and how far their rows are apart."""
    address, width, height = image
    plane = width * height
    return address, address + plane, address + 2 * plane, 0, width, width, width, 0
