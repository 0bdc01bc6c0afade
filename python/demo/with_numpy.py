"""The demo without torch: a plain reader, belady in its place, and a CNN of one layer in NumPy.

The plain reader is what a loader without a cache comes to: threads that read and decode files ahead,
in the order of training.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import images
import numpy
from numpy.lib.stride_tricks import sliding_window_view
from settings import AHEAD, BATCH, STAGING, WORKERS
from throttle import Link

import belady

Array = Any


def decode(file: bytes | memoryview, label: int) -> tuple[Array, int]:
    """From a file's bytes to what the network takes."""
    return images.decode(file).astype(numpy.float32) / 255 - 0.5, label


def stacked(samples: list[tuple[Array, int]]) -> tuple[Array, Array]:
    """A batch of samples as two arrays."""
    pictures, labels = zip(*samples, strict=True)
    return numpy.stack(pictures), numpy.array(labels)


class PlainReader:
    """Threads that read files ahead in the order of training, and keep nothing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.files = images.listing(args.folder)
        # It only tells the order of each epoch: the seed decides, and nothing is read.
        self.order = belady_loader(args)[0].sampler
        self.link = Link(args.throttle) if args.throttle else None
        self.threads = ThreadPoolExecutor(WORKERS)
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.files) // BATCH

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        self.order.set_epoch(self.epoch)
        indices = list(self.order)
        self.epoch += 1
        batches = iter([indices[at : at + BATCH] for at in range(0, len(self) * BATCH, BATCH)])
        ahead: deque[list[Future[tuple[Array, int]]]] = deque()
        for _ in range(AHEAD):
            self._begin(batches, ahead)
        while ahead:
            samples = [sample.result() for sample in ahead.popleft()]
            self._begin(batches, ahead)
            yield stacked(samples)

    def _begin(self, batches: Iterator[list[int]], ahead: deque[Any]) -> None:
        if (batch := next(batches, None)) is not None:
            ahead.append([self.threads.submit(self._read, index) for index in batch])

    def _read(self, index: int) -> tuple[Array, int]:
        path, label = self.files[index]
        data = path.read_bytes()
        if self.link is not None:
            self.link.carry(len(data))
        return decode(data, label)


def plain_loader(args: argparse.Namespace) -> tuple[Any, Callable[[], int]]:
    reader = PlainReader(args)
    return reader, lambda: reader.link.carried if reader.link else 0


def belady_loader(args: argparse.Namespace) -> tuple[Any, Callable[[], int]]:
    throttle = f"1:{args.throttle}B/s" if args.throttle else None
    data = belady.open(args.folder, snapshots=False, throttle=throttle)
    loader = belady.DataLoader(
        data, batch_size=BATCH, shuffle=True, seed=0, drop_last=True, epochs=args.epochs,
        decode=decode, collate_fn=stacked,
        cache=[f"ram:{args.cache}"] if args.cache else [], staging=STAGING,
    )  # fmt: skip
    return loader, lambda: loader.stats()["engine"]["source"]["bytes"]


LOADERS = {"plain": plain_loader, "belady": belady_loader}

SIDE, STRIDE, FILTERS = 5, 2, 16


class Network:
    """Filters of 5 x 5, ReLU, the mean over the picture, and a linear layer; learns by Adam."""

    def __init__(self) -> None:
        draw = numpy.random.default_rng(0)
        inputs = 3 * SIDE * SIDE
        self.weights = [
            draw.normal(0, (2 / inputs) ** 0.5, (inputs, FILTERS)).astype(numpy.float32),
            draw.normal(0, 1, (FILTERS, images.CLASSES)).astype(numpy.float32),
        ]
        self.first = [numpy.zeros_like(weight) for weight in self.weights]
        self.second = [numpy.zeros_like(weight) for weight in self.weights]
        self.steps = 0

    def step(self, pictures: Array, labels: Array) -> float:
        """Learns from one batch, and returns its loss."""
        convolution, linear = self.weights
        windows = sliding_window_view(pictures, (SIDE, SIDE), axis=(1, 2))
        columns = windows[:, ::STRIDE, ::STRIDE].reshape(len(pictures), -1, len(convolution))
        hidden = numpy.maximum(columns @ convolution, 0)
        features = hidden.mean(axis=1)
        scores = features @ linear
        scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        shares = scores / scores.sum(axis=1, keepdims=True)
        rows = numpy.arange(len(labels))
        loss = float(-numpy.log(shares[rows, labels]).mean())
        # Backwards.
        shares[rows, labels] -= 1
        shares /= len(labels)
        of_hidden = (shares @ linear.T)[:, None, :] / hidden.shape[1] * (hidden > 0)
        flat = columns.reshape(-1, len(convolution))
        self._adam([flat.T @ of_hidden.reshape(-1, FILTERS), features.T @ shares])
        return loss

    def _adam(self, gradients: list[Array], rate: float = 1e-2) -> None:
        self.steps += 1
        correction = (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)
        for weight, first, second, gradient in zip(
            self.weights, self.first, self.second, gradients, strict=True
        ):
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient * gradient - second)
            weight -= rate * correction * first / (numpy.sqrt(second) + 1e-8)
