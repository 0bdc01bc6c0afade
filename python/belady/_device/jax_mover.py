"""Moves batches to a device of JAX, or to several by a sharding.

`device_put` returns before the copy ends, so a batch that is put ahead has arrived when it is used.
The tail of the chain is compiled once.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _native
from .._pipeline import arrays
from .._pipeline.decode import Outcome
from .._pipeline.feeds import Taken
from .tail import Tail


class JaxMover:
    """Moves the arrays of a batch, and finishes the fields that have a tail."""

    def __init__(self, device: Any, tails: dict[Any, Tail]) -> None:
        self._device = device
        self._finish = {key: finish(tail) for key, tail in tails.items()}

    def begin(self, taken: Taken) -> Outcome:
        outcome = taken[1]
        if outcome.value is None:
            return outcome
        moved = _moved(outcome.value, self._device)
        for key, finish_ in self._finish.items():
            moved[key] = finish_(moved[key])
        return outcome._replace(value=moved)

    def arrived(self, moving: Outcome, timeout: float | None) -> Outcome:
        return moving

    def close(self) -> None:
        return


def _moved(value: Any, device: Any) -> Any:
    """Moves everything that JAX takes for an array, within lists and dicts too."""
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if all(isinstance(item, int | float) for item in value):
            return jax.device_put(np.asarray(value), device)
        return [_moved(item, device) for item in value]
    if isinstance(value, _native.Array):
        return jax.device_put(arrays.to_numpy(value), device)
    if hasattr(value, "__array__") or isinstance(value, jax.Array):
        return jax.device_put(value if isinstance(value, jax.Array) else _of_numpy(value), device)
    return value


def _of_numpy(value: Any) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        # numpy has no bfloat16, so torch does not convert it.
        return value.view(torch.uint16).numpy().view(jnp.bfloat16)
    return np.asarray(value)


def finish(tail: Tail) -> Any:
    """Returns a compiled function that converts bytes [B, H, W, C] to numbers."""
    table = jnp.asarray(arrays.to_numpy(tail.table)[0].T)
    axis = -1 if tail.layout == "HWC" else 1

    def run(batch: Any) -> Any:
        return jnp.stack([row[batch[..., at]] for at, row in enumerate(table)], axis=axis)

    return jax.jit(run)
