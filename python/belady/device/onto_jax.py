"""Batches onto a device of JAX, or onto many by a sharding.

`device_put` returns before the copy has ended, so a batch that is put ahead is there when it is
asked for. The end of the chain is compiled once.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..batch import Batch
from ..decode import Outcome
from ..feed import Taken
from .tail import Tail


class JaxMover:
    """Moves whatever arrays a batch has; the first field is finished as `tail` says."""

    def __init__(self, device: Any, tail: Tail | None) -> None:
        self._device = device
        self._finish = None if tail is None else finish(tail)

    def begin(self, taken: Taken) -> Outcome:
        outcome = taken[1]
        if outcome.value is None:
            return outcome
        moved = jax.device_put(tuple(outcome.value), self._device)
        if self._finish is not None:
            moved = (self._finish(moved[0]), *moved[1:])
        kind = type(outcome.value)
        return outcome._replace(value=kind(moved) if kind in (Batch, list, tuple) else moved)

    def arrived(self, moving: Outcome) -> Outcome:
        return moving

    def close(self) -> None:
        return


def finish(tail: Tail) -> Any:
    """Bytes [B, H, W, C] become numbers, by a function that JAX compiles."""
    mean, std = jnp.asarray(tail.mean, jnp.float32), jnp.asarray(tail.std, jnp.float32)

    def run(batch: Any) -> Any:
        numbers = ((batch.astype(jnp.float32) / 255 - mean) / std).astype(tail.dtype)
        return numbers if tail.layout == "HWC" else numbers.transpose(0, 3, 1, 2)

    return jax.jit(run)
