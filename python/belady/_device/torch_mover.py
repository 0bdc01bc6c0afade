"""Moves batches to a device of torch.

Copies run on a separate stream, so that they overlap with computing. The memory that a batch is
copied from must not change until the copy ends, so it is referenced until then."""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

from .._pipeline.batch import Batch
from .._pipeline.decode import Outcome
from .._pipeline.feeds import Taken
from . import kernels
from .tail import Tail


class Moving:
    """A batch in flight, and the event of its arrival."""

    def __init__(self, outcome: Outcome, there: torch.cuda.Event | None) -> None:
        self._outcome = outcome
        self._there = there

    def arrived(self, device: torch.device) -> Outcome:
        """Returns the batch, for the current stream of the calling thread."""
        if self._there is not None:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(self._there)
            on_tensors(self._outcome.value, lambda tensor: tensor.record_stream(stream))
        return self._outcome


class References:
    """Keeps values referenced until a stream has reached an event."""

    def __init__(self) -> None:
        self._kept: deque[tuple[torch.cuda.Event, Any]] = deque()

    def until(self, there: torch.cuda.Event, value: Any) -> None:
        """Drops what is no longer needed, and keeps this value."""
        while self._kept and self._kept[0][0].query():  # type: ignore[no-untyped-call]
            self._kept.popleft()
        self._kept.append((there, value))

    def wait(self) -> None:
        """Waits until no value is needed."""
        while self._kept:
            self._kept.popleft()[0].synchronize()


class TorchMover:
    """Moves the tensors of a batch, and finishes the fields that have a tail."""

    def __init__(
        self, device: torch.device, tails: dict[Any, Tail], layout: torch.memory_format
    ) -> None:
        self._device = device
        self._finish = {key: Finish(tail, device, layout) for key, tail in tails.items()}
        self._stream = side_stream(device) if device.type == "cuda" else None
        self._references = References()

    def begin(self, taken: Taken) -> Moving:
        outcome = taken[1]
        if outcome.value is None:
            return Moving(outcome, None)
        if self._stream is None:
            return Moving(outcome._replace(value=self._moved(outcome.value)), None)
        with torch.cuda.stream(self._stream):
            value = self._moved(outcome.value)
            there = self._stream.record_event()
        self._references.until(there, outcome.value)
        return Moving(outcome._replace(value=value), there)

    def _moved(self, value: Any) -> Any:
        moved = on_tensors(value, lambda tensor: tensor.to(self._device, non_blocking=True))
        for key, finish in self._finish.items():
            moved[key] = finish(moved[key])
        return moved

    def arrived(self, moving: Moving, timeout: float | None) -> Outcome:
        return moving.arrived(self._device)

    def close(self) -> None:
        self._references.wait()


class Finish:
    """The tail of a chain on the device: bytes [B, H, W, C] become numbers."""

    def __init__(self, tail: Tail, device: torch.device, layout: torch.memory_format) -> None:
        table: torch.Tensor = torch.utils.dlpack.from_dlpack(tail.table)
        #: The number of each byte in each channel, [C, 256].
        self.table = table[0].T.contiguous().to(device)
        self._channels_last = tail.layout == "HWC"
        self._layout = torch.channels_last if self._channels_last else layout
        self._compiled = kernels.available(device)

    def empty(self, images: int, height: int, width: int) -> torch.Tensor:
        """Returns memory for a batch [B, C, H, W]."""
        return torch.empty(
            (images, len(self.table), height, width),
            dtype=self.table.dtype,
            device=self.table.device,
            memory_format=self._layout,
        )

    def shown(self, made: torch.Tensor) -> torch.Tensor:
        """Returns the batch with the axes in the chain's order."""
        return made.permute(0, 2, 3, 1) if self._channels_last else made

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        into = self.empty(*batch.shape[:3])
        if self._compiled:
            kernels.normalise(batch, into, self.table)
        else:
            for channel, numbers in enumerate(self.table):
                into[:, channel] = numbers[batch[..., channel].long()]
        return self.shown(into)


def on_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Applies the function to every tensor, within lists and dicts too."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Batch):
        moved = Batch(on_tensors(item, function) for item in value)
        moved.__dict__.update(value.__dict__)
        return moved
    if isinstance(value, dict):
        return {key: on_tensors(item, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(on_tensors(item, function) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(on_tensors(item, function) for item in value)
    return value


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns a stream beside the one that computes."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def memory_format(name: str | None) -> torch.memory_format:
    """Returns a memory format by name."""
    return torch.channels_last if name == "channels_last" else torch.contiguous_format


def pin_or_unpin(address: int, length: int, here: bool) -> None:
    """Pins memory, so that a GPU copies from it without the processor, or unpins it."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = (
        runtime.cudaHostRegister(address, length, 0)
        if here
        else runtime.cudaHostUnregister(address)
    )
    if int(error) == 0:
        return
    # CUDA keeps the error for the next launch of this thread, which then fails: this one.
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
    if here:
        # Copies from it are slower, but correct.
        warnings.warn(f"{length} bytes could not be pinned: {error}", stacklevel=2)
