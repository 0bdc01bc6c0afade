"""What the random steps of transforms draw from: the seed, the epoch, the sample.

An order that gives samples more than once in an epoch (a sampler with replacement, repeated augmentation)
wants another crop each time. There the place in the epoch takes part as well.
"""

from __future__ import annotations

from typing import NamedTuple

from .state import Position

#: What parts the draws of places, and those of ranks: odd numbers without a pattern in their bits.
#: The native `Draw::at_place` has the first one too.
_OF_PLACES = 0xD1B54A32D192ED03
_OF_RANKS = 0xABC98388FB8FAC03
_OF_STARTS = 0x9E3779B97F4A7C15
_OF_TURNS = 0xC2B2AE3D27D4EB4F


class Place(NamedTuple):
    """A sample in a batch, as the engine counts."""

    epoch: int
    iteration: int
    position: int
    sample: int


class Draws(NamedTuple):
    """What draws of a running job depend on, beside the sample and its batch."""

    seed: int
    #: What the engine counts as batch 0 of epoch 0.
    first: Position
    #: Whether a sample can come more than once in an epoch.
    repeats: bool = False

    def epoch(self, engines: int) -> int:
        """An epoch of the engine's, as the run counts."""
        return self.first.epoch + engines

    def iteration(self, engines_epoch: int, engines: int) -> int:
        """A batch of the engine's, as the run counts."""
        return engines + (self.first.batch if engines_epoch == 0 else 0)

    def seed_of_workers(self) -> int:
        """For worker processes that are started at `first`; each adds its number."""
        # torch's generator looks at the lowest 32 bits alone.
        start = self.first.epoch * _OF_STARTS + self.first.batch * _OF_TURNS
        return (self.seed + start) % 2**62

    def seed_of(self, engines_epoch: int, engines_iteration: int, position: int) -> int:
        """The seed for the sample at a position of a batch of the engine's."""
        if not self.repeats:
            return self.seed
        iteration = self.iteration(engines_epoch, engines_iteration)
        place = (iteration << 32 | position) + 1
        return (self.seed + place * _OF_PLACES) % 2**64


def seed_of_turn(seed: int, turn: int) -> int:
    """Parts the draws of an epoch that is gone through again."""
    return (seed + turn * _OF_TURNS) % 2**64


def seed_of_rank(seed: int, rank: int) -> int:
    """Parts the draws of ranks that may have the same sample at the same place."""
    return (seed + rank * _OF_RANKS) % 2**64
