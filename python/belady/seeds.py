"""What a loader's `seed` decides: the orders of its own, and what transforms draw."""

from __future__ import annotations

import sys
from typing import Any

from . import arguments

#: The default: as torch does it.
TORCH = "torch"


class Seed:
    """A seed that was named, or torch's."""

    def __init__(self, value: int, *, follows_torch: bool = False) -> None:
        #: Of orders that follow from a seed; torch's `DistributedSampler` has 0.
        self.of_orders = value
        self.follows_torch = follows_torch
        self._drawn: int | None = None

    def of_draws(self) -> int:
        """Of what transforms draw. Where torch's is followed, it is looked up once, when it is first
        used: a run keeps what it began with."""
        if self._drawn is None:
            self._drawn = _torch().initial_seed() % 2**63 if self.follows_torch else self.of_orders
        return self._drawn

    def of_state(self, draws: object) -> Seed:
        """As it was when a state was saved, if it is torch's; a seed that was named stays."""
        restored = Seed(self.of_orders, follows_torch=self.follows_torch)
        if self.follows_torch and type(draws) is int:
            restored._drawn = draws
        return restored


def checked(value: object) -> Seed:
    """The seed, or a sentence about what is wrong with it."""
    if value is None:
        return Seed(0)  # until one is drawn
    if value == TORCH:
        return Seed(0, follows_torch=_torch() is not None)
    return Seed(arguments.count(value, "seed", most=2**64 - 1))


def _torch() -> Any:
    """torch, if it is imported as a whole."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None
