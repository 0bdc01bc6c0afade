"""The ranks of a job by machine: every rank knows the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Machines(NamedTuple):
    """The ranks of each machine, the machine of rank 0 first."""

    ranks: list[list[int]]

    @classmethod
    def of(cls, firsts: Sequence[int]) -> Machines:
        """Returns the machines, given the first rank on the machine of each rank.

        >>> Machines.of([0, 1, 0, 1]).ranks
        [[0, 2], [1, 3]]
        """
        ranks: dict[int, list[int]] = {}
        for rank, first in enumerate(firsts):
            ranks.setdefault(first, []).append(rank)
        return cls(list(ranks.values()))

    @property
    def sizes(self) -> list[int]:
        """The different numbers of ranks on a machine.

        >>> Machines.of([0, 0, 2]).sizes
        [1, 2]
        """
        return sorted({len(ranks) for ranks in self.ranks})

    @property
    def numbering(self) -> list[int]:
        """The ranks, machine after machine."""
        return [rank for ranks in self.ranks for rank in ranks]

    def machine_of(self, rank: int) -> int:
        """Returns the number of a rank's machine."""
        return next(at for at, ranks in enumerate(self.ranks) if rank in ranks)
