"""Makes arrays of JAX from samples.

    loader = belady.DataLoader(data, batch_size=64, collate_fn=belady.jax.stack)
    for images, labels in loader:       # uint8 [64, bytes of a sample], int32 [64]

On the CPU an array may lie on a slot of the staging buffer, which it then keeps; JAX copies to
other devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _native


def array(sample: _native.Sample | _native.Stacked) -> jax.Array:
    """Returns the bytes of a sample, or of a whole stack, as an array of uint8."""
    made: jax.Array = jnp.from_dlpack(sample)
    return made


def labels(batch: _native.Batch) -> jax.Array:
    """Returns the labels of a batch; -1 for none."""
    return jnp.asarray(np.frombuffer(batch.labels_bytes(), dtype=np.int64))


class Stack:
    """A `collate_fn` for samples that are raw arrays of one dtype and shape."""

    takes_batch = True
    __name__ = "belady.jax.Stack"

    def __init__(self, dtype: Any = jnp.uint8, shape: Sequence[int] | None = None) -> None:
        self.dtype = dtype
        self.shape = None if shape is None else tuple(shape)

    def __call__(self, batch: _native.Batch) -> tuple[jax.Array, jax.Array]:
        whole = batch.stacked()
        if whole is not None:
            data = array(whole)
        else:
            data = jnp.stack([array(sample) for sample in batch.samples()])
        if self.dtype != jnp.uint8:
            data = jax.lax.bitcast_convert_type(
                data.reshape(len(batch), -1, np.dtype(self.dtype).itemsize), self.dtype
            )
        if self.shape is not None:
            data = data.reshape(len(batch), *self.shape)
        return data, labels(batch)


#: The unchanged bytes: uint8 of two dimensions.
stack = Stack()


def arrays(batch: _native.Batch) -> tuple[list[jax.Array], jax.Array]:
    """A `collate_fn` for samples of any size: returns a list of arrays of uint8, and labels."""
    return [array(sample) for sample in batch.samples()], labels(batch)


arrays.takes_batch = True  # type: ignore[attr-defined]
