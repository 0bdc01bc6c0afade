"""Batches onto a device of torch.

Copies are made on a stream of their own, so that they overlap with computing. What a batch is
copied from must stay as it is until the copy has ended, so it is held on to until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ..batch import Batch
from ..decode import Outcome
from ..feed import Taken
from . import kernels
from .tail import Tail


class Moving:
    """A batch on its way, and the event that says that it is there."""

    def __init__(self, outcome: Outcome, there: torch.cuda.Event | None) -> None:
        self._outcome = outcome
        self._there = there

    def arrived(self, device: torch.device) -> Outcome:
        """The batch, to be used on the stream of the thread that calls."""
        if self._there is not None:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(self._there)
            on_tensors(self._outcome.value, lambda tensor: tensor.record_stream(stream))
        return self._outcome


class Held:
    """What has to stay as it is until a stream has come to an event."""

    def __init__(self) -> None:
        self._held: deque[tuple[torch.cuda.Event, Any]] = deque()

    def until(self, there: torch.cuda.Event, value: Any) -> None:
        """Lets go of what is no longer needed, and holds on to this."""
        while self._held and self._held[0][0].query():
            self._held.popleft()
        self._held.append((there, value))

    def wait(self) -> None:
        """Until nothing is needed any more."""
        while self._held:
            self._held.popleft()[0].synchronize()


class TorchMover:
    """Moves whatever tensors a batch has; the first field is finished as `tail` says."""

    def __init__(
        self, device: torch.device, tail: Tail | None, memory_format: torch.memory_format
    ) -> None:
        self._device = device
        self._tail = tail
        self._finish = Finish(tail, device, memory_format) if tail is not None else None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._held = Held()

    def begin(self, taken: Taken) -> Moving:
        outcome = taken[1]
        if outcome.value is None:
            return Moving(outcome, None)
        if self._stream is None:
            return Moving(outcome._replace(value=self._moved(outcome.value)), None)
        with torch.cuda.stream(self._stream):
            value = self._moved(outcome.value)
            there = self._stream.record_event()
        self._held.until(there, outcome.value)
        return Moving(outcome._replace(value=value), there)

    def _moved(self, value: Any) -> Any:
        moved = on_tensors(value, lambda tensor: tensor.to(self._device, non_blocking=True))
        if self._finish is None:
            return moved
        first, *rest = moved
        made = (self._finish(first), *rest)
        return Batch(made) if isinstance(value, Batch) else type(value)(made)

    def arrived(self, moving: Moving) -> Outcome:
        return moving.arrived(self._device)

    def close(self) -> None:
        self._held.wait()


class Finish:
    """The end of a chain on the device: bytes [B, H, W, C] become numbers."""

    def __init__(
        self, tail: Tail, device: torch.device, memory_format: torch.memory_format
    ) -> None:
        self.dtype: torch.dtype = getattr(torch, tail.dtype)
        self.means = torch.tensor(tail.mean, device=device)
        self.deviations = torch.tensor(tail.std, device=device)
        self._channels_last = tail.layout == "HWC"
        self._format = memory_format
        self._compiled = kernels.available(device)

    def room(self, images: int, channels: int, height: int, width: int) -> torch.Tensor:
        """Where a batch [B, C, H, W] will be."""
        layout = torch.channels_last if self._channels_last else self._format
        return torch.empty(
            (images, channels, height, width),
            dtype=self.dtype,
            device=self.means.device,
            memory_format=layout,
        )

    def shown(self, made: torch.Tensor) -> torch.Tensor:
        """The batch in the order of axes that the chain promises."""
        return made.permute(0, 2, 3, 1) if self._channels_last else made

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        images, height, width, channels = batch.shape
        into = self.room(images, channels, height, width)
        if self._compiled:
            kernels.normalise(batch, into, self.means, self.deviations)
        else:
            planes = batch.permute(0, 3, 1, 2).to(torch.float32).div_(255)
            shape = (1, channels, 1, 1)
            planes.sub_(self.means.view(shape)).div_(self.deviations.view(shape))
            into.copy_(planes)
        return self.shown(into)


def on_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """The function on every tensor, within lists and dicts too."""
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


def pin(address: int, length: int) -> None:
    """Pins a block of memory, so that a GPU can fetch from it while the processor works."""
    error = torch.cuda.cudart().cudaHostRegister(address, length, 0)  # type: ignore[no-untyped-call]
    if int(error) != 0:
        raise RuntimeError(f"pinning {length} bytes failed: {error}")


def unpin(address: int) -> None:
    """Undoes `pin`."""
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
