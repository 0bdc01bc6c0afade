"""Makes tensors of TensorFlow from samples, and a `tf.data.Dataset` from a loader.

    loader = belady.DataLoader(data, batch_size=64, collate_fn=belady.tensorflow.strings)
    for images, labels in belady.tensorflow.dataset(loader):   # string [64], int64 [64]
        ...

TensorFlow takes encoded images as strings (`tf.io.decode_jpeg`), which are its own copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped,unused-ignore]

from . import _native
from ._loader.loader import DataLoader


def strings(batch: _native.Batch) -> tuple[Any, Any]:
    """A `collate_fn`: returns samples as a tensor of strings, and labels as int64."""
    return tf.constant([bytes(sample) for sample in batch.samples()]), labels(batch)


strings.takes_batch = True  # type: ignore[attr-defined]


def labels(batch: _native.Batch) -> Any:
    """Returns the labels of a batch as int64; -1 for none."""
    return tf.constant(batch.labels, dtype=tf.int64)


def dataset(loader: DataLoader, output_signature: Any = None) -> Any:
    """Returns the loader as a `tf.data.Dataset`; one pass over it is one epoch.

    `output_signature` describes the batches, as for `tf.data.Dataset.from_generator`; by default
    they are those of `strings`."""
    if output_signature is None:
        output_signature = (
            tf.TensorSpec(shape=(None,), dtype=tf.string),
            tf.TensorSpec(shape=(None,), dtype=tf.int64),
        )

    def batches() -> Iterator[Any]:
        for batch in loader:
            yield tuple(batch) if isinstance(batch, tuple) else batch

    return tf.data.Dataset.from_generator(batches, output_signature=output_signature)
