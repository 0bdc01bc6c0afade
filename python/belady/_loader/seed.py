"""A loader's `seed`: the seed of its order, and of what transforms draw."""

from __future__ import annotations

import sys
from typing import Any

from .._configuration import arguments

#: The default: the loader follows torch.
TORCH = "torch"


class Seed:
    """A seed that the user named, or torch's."""

    def __init__(self, value: int, *, follows_torch: bool = False) -> None:
        #: The seed of orders; that of torch's `DistributedSampler` is 0.
        self.of_orders = value
        self.follows_torch = follows_torch
        self._of_transforms: int | None = None

    def of_transforms(self) -> int:
        """Returns the seed of what transforms draw.

        torch's seed is read once, when it is first used: a run keeps the seed that it began with.
        """
        if self._of_transforms is None:
            follows = self.follows_torch
            self._of_transforms = _torch().initial_seed() % 2**63 if follows else self.of_orders
        return self._of_transforms

    def restored(self, saved: object) -> Seed:
        """Returns the seed with which a state was saved, if it is torch's; a named seed stays."""
        restored = Seed(self.of_orders, follows_torch=self.follows_torch)
        if self.follows_torch and type(saved) is int:
            restored._of_transforms = saved
        return restored


def checked(value: object) -> Seed:
    """Returns the seed. Raises if it is neither "torch", None nor a number."""
    if value is None:
        return Seed(0)  # until rank 0 draws one
    if value == TORCH:
        return Seed(0, follows_torch=_torch() is not None)
    return Seed(arguments.count(value, "seed", most=2**64 - 1))


def _torch() -> Any:
    """Returns torch, if it is imported completely."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None
