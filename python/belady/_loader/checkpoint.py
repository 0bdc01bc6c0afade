"""Checkpoints of a loader: a position, and the run that it belongs to.

A state is a small dict that is safe for JSON. Its position counts batches that were *delivered*,
not those that were read ahead. Beside it stands the run: the dataset's fingerprint, the global
batch, the order and its seed or generator. A loader refuses a state of another run, and says what
differs.

The position is the same on every rank, so a state saved by one rank is valid for all, also with
another world size, as long as the global batch (batch size × world size) is the same: batch i of an
epoch then has the same samples, shared by other ranks. Only the padding at an epoch's end differs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .._pipeline.position import Position

VERSION = 1
_KEYS = ("version", "epoch", "batch", "fingerprint", "global_batch", "drop_last", "order")


class RunIdentity(NamedTuple):
    """What has to be equal for a position to mean the same."""

    fingerprint: str
    #: None with a batch sampler, whose batches may differ.
    global_batch: int | None
    drop_last: bool
    #: The order's kind, and its seed if it has one.
    order: dict[str, Any]


def pack(position: Position, run: RunIdentity, details: dict[str, Any]) -> dict[str, Any]:
    """Returns the state that users save."""
    return {
        "version": VERSION,
        "epoch": position.epoch,
        "batch": position.batch,
        "fingerprint": run.fingerprint,
        "global_batch": run.global_batch,
        "drop_last": run.drop_last,
        "order": run.order | details,
    }


def order_of(state: object) -> dict[str, Any]:
    """Returns what a state says about its order; empty if it is no state."""
    order = state.get("order") if isinstance(state, dict) else None
    return order if isinstance(order, dict) else {}


def unpack(state: object, run: RunIdentity) -> tuple[Position, dict[str, Any]]:
    """Returns the position and the order's details. Raises if the state is of another run."""
    if not isinstance(state, dict):
        raise TypeError(f"a state is a dict from state_dict(), not {type(state).__name__}")
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise ValueError(f"this is not the state of a belady loader: it has no {missing[0]}")
    if state["version"] != VERSION:
        raise ValueError(
            f"the state has version {state['version']}, and this belady reads {VERSION}; "
            "load it with the version that saved it"
        )
    _refuse_differences(state, run)
    epoch, batch = state["epoch"], state["batch"]
    if not all(type(value) is int and value >= 0 for value in (epoch, batch)):
        raise ValueError(f"the state's position is damaged: epoch {epoch!r}, batch {batch!r}")
    return Position(epoch, batch), dict(state["order"])


def _refuse_differences(state: dict[str, Any], run: RunIdentity) -> None:
    if state["fingerprint"] != run.fingerprint:
        raise ValueError(
            f"the state is of another dataset (fingerprint {state['fingerprint']}, here "
            f"{run.fingerprint}); samples would be repeated or left out. Open the dataset that "
            "the run began with"
        )
    if state["global_batch"] != run.global_batch:
        raise ValueError(
            f"the state counts in global batches of {state['global_batch']} samples, and this "
            f"loader has {run.global_batch} (batch_size × world size); make them equal"
        )
    if state["drop_last"] != run.drop_last:
        raise ValueError(
            f"the state was saved with drop_last={state['drop_last']}, and this loader has "
            f"drop_last={run.drop_last}; make them equal"
        )
    for key, value in run.order.items():
        saved = state["order"].get(key)
        if saved != value:
            raise ValueError(
                f"the state was saved with {key}={saved}, and this loader has {key}={value}; "
                "the order of samples would be another one. Make them equal"
            )
