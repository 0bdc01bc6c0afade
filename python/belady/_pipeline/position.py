"""Positions in a run."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """A batch of a run: its epoch, and its number within the epoch."""

    epoch: int
    batch: int


class SamplePlace(NamedTuple):
    """A sample of a batch, as the engine counts: from the batch on at which its job started."""

    epoch: int
    iteration: int
    position: int
    sample: int
