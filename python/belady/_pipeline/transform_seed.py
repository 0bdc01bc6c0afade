"""What random transforms draw from: the seed, the epoch and the sample.

An order may give a sample more than once in an epoch (a sampler with replacement, repeated
augmentation). Then the sample's place in the epoch takes part too, so that each time draws other
numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from .position import Position

#: Odd multipliers without a pattern in their bits, which separate the draws of places, ranks,
#: starts and repetitions. The native `Draw::at_place` has the first one too.
_OF_PLACES = 0xD1B54A32D192ED03
_OF_RANKS = 0xABC98388FB8FAC03
_OF_STARTS = 0x9E3779B97F4A7C15
_OF_REPETITIONS = 0xC2B2AE3D27D4EB4F


class TransformSeed(NamedTuple):
    """What the draws of a running job depend on, beside the sample and its batch."""

    seed: int
    #: What the engine counts as batch 0 of epoch 0.
    first: Position
    #: Whether a sample can come more than once in an epoch.
    repeats: bool = False

    def epoch(self, engine_epoch: int) -> int:
        """Returns the run's number of an epoch of the engine."""
        return self.first.epoch + engine_epoch

    def iteration(self, engine_epoch: int, engine_iteration: int) -> int:
        """Returns the run's number of a batch of the engine."""
        return engine_iteration + (self.first.batch if engine_epoch == 0 else 0)

    def seed_of_workers(self) -> int:
        """Returns the seed of worker processes that start at `first`; each adds its number."""
        # torch's generator uses the lowest 32 bits alone.
        start = self.first.epoch * _OF_STARTS + self.first.batch * _OF_REPETITIONS
        return (self.seed + start) % 2**62

    def seed_of(self, engine_epoch: int, engine_iteration: int, position: int) -> int:
        """Returns the seed for the sample at a position of a batch of the engine."""
        if not self.repeats:
            return self.seed
        iteration = self.iteration(engine_epoch, engine_iteration)
        place = (iteration << 32 | position) + 1
        return (self.seed + place * _OF_PLACES) % 2**64


def seed_of_repetition(seed: int, repetition: int) -> int:
    """Separates the draws of an epoch that is read again."""
    return (seed + repetition * _OF_REPETITIONS) % 2**64


def seed_of_rank(seed: int, rank: int) -> int:
    """Separates the draws of ranks that may have the same sample at the same place."""
    return (seed + rank * _OF_RANKS) % 2**64
