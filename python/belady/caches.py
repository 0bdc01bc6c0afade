"""Caches on disk of processes that share a node.

A cache on disk has one writer. Processes whose caches are one cache all write, so each has a directory of
its own below the one that was named: the first process of the node that one itself, the k-th
`belady-rank-k` in it. A job that has fewer processes on the node than the last one clears what the others
left behind, so that the quota holds.
"""

from __future__ import annotations

import logging
import os
import re

from . import _native
from .arguments import Tier
from .distributed import World
from .errors import BeladyError

log = logging.getLogger("belady")

_OF_RANK = re.compile(r"belady-rank-(\d+)")


def of_rank(tiers: list[Tier], world: World) -> list[Tier]:
    """The tiers of this process, which shares its node with others that write too."""
    if world.local_rank == 0:
        return tiers
    own = f"belady-rank-{world.local_rank}"
    return [(place and os.path.join(place, own), quota) for place, quota in tiers]


def clear_left_behind(tiers: list[Tier], world: World) -> None:
    """Clears caches of processes that this job does not have on the node. Those in use stay."""
    if world.local_rank != 0:
        return
    for place, _ in tiers:
        for directory in _left_behind(place, world.local_size) if place else []:
            try:
                _native.clear_caches(directory)
            except BeladyError as error:
                log.warning("a cache of an earlier job stays beyond the quota: %s", error)


def _left_behind(place: str, ranks: int) -> list[str]:
    try:
        names = os.listdir(place)
    except OSError:  # not there yet; whoever opens it says what else is wrong
        return []
    numbers = {name: _OF_RANK.fullmatch(name) for name in names}
    return [
        os.path.join(place, name)
        for name, number in sorted(numbers.items())
        if number is not None and int(number[1]) >= ranks
    ]
