"""Steps of training, and how much of the time the GPU has nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torchvision

MODELS = {
    "ResNet-50": "resnet50",
    "ResNet-18": "resnet18",
    "SqueezeNet 1.1": "squeezenet1_1",
    "AlexNet": "alexnet",
}
CLASSES = 1000
SIDE = 224
# Autotuning, filled queues, a settled clock. Steps of the slowest model take 60 ms.
WARM_UP_STEPS = 15
WARM_UP_SECONDS = 2.0

Batch = tuple[torch.Tensor, torch.Tensor]


class Trainer:
    def __init__(self, device: str, batch: int, seconds: float) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise SystemExit(
                "there is no GPU that torch can use; --device cpu tries the program itself"
            )
        self.device, self.batch, self.seconds = device, batch, seconds
        self.models: dict[str, Any] = {}
        torch.backends.cudnn.benchmark = True

    def fixed_batch(self) -> Iterator[Batch]:
        """A batch that is there already, in the type and format that cost least."""
        images = torch.randn(self.batch, 3, SIDE, SIDE, device=self.device, dtype=torch.bfloat16)
        images = images.to(memory_format=torch.channels_last)
        labels = torch.randint(CLASSES, (self.batch,), device=self.device)
        while True:
            yield images, labels

    def model(self, name: str) -> tuple[Any, Any]:
        if name not in self.models:
            torch.manual_seed(0)
            model = getattr(torchvision.models, MODELS[name])(num_classes=CLASSES)
            model = model.to(self.device, memory_format=torch.channels_last).train()
            self.models[name] = model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return self.models[name]

    def train(self, name: str, batches: Iterator[Batch]) -> dict[str, float]:
        model, optimizer = self.model(name)

        def step(images: torch.Tensor, labels: torch.Tensor) -> None:
            images = images.to(memory_format=torch.channels_last)
            with torch.autocast(self.device, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

        self._steps(batches, step, WARM_UP_SECONDS, WARM_UP_STEPS)
        return self._steps(batches, step, self.seconds, 2)

    def drain(self, batches: Iterator[Batch]) -> dict[str, float]:
        """How fast batches come if nothing is done with them."""
        self._steps(batches, lambda *_: None, WARM_UP_SECONDS, WARM_UP_STEPS)
        found = self._steps(batches, lambda *_: None, self.seconds, 2)
        del found["waits"]
        return found

    def _steps(
        self, batches: Iterator[Batch], step: Any, seconds: float, least: int
    ) -> dict[str, float]:
        """Runs steps until both are over."""
        images, starts, ends = 0, [], []
        self._synchronize()
        began = time.perf_counter()
        while len(ends) < least or time.perf_counter() - began < seconds:
            pictures, labels = next(batches)
            pictures = pictures.to(self.device, non_blocking=True)
            labels = labels.to(self.device, non_blocking=True)
            starts.append(self._mark())
            step(pictures, labels)
            ends.append(self._mark())
            images += len(labels)
            if len(ends) > 4:
                # No more than a few steps ahead of the GPU, or the clock would stop long before it.
                self._wait(ends[-4])
        self._synchronize()
        spent = time.perf_counter() - began
        pairs = zip(starts, ends, strict=True)
        busy = sum(self._between(start, end) for start, end in pairs)
        return {
            "images_a_second": images / spent,
            "waits": max(0.0, 1 - busy / spent),
            "steps": len(ends),
        }

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _mark(self) -> Any:
        """A moment in the GPU's queue."""
        if self.device != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _wait(self, moment: Any) -> None:
        if self.device == "cuda":
            moment.synchronize()

    def _between(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end) / 1e3 if self.device == "cuda" else end - start
