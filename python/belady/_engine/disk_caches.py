"""Disk caches of processes that share a node.

A disk cache has one writer. The processes of a cluster all write, so each has its own directory:
the first process of the node the named directory, the k-th `belady-rank-k` within it. A job with
fewer processes on the node than the last one removes the caches of the others, so that the quota
holds."""

from __future__ import annotations

import logging
import os
import re

from .. import _native
from .._cluster.world import World
from .._configuration.arguments import Tier
from ..errors import BeladyError

log = logging.getLogger("belady")

_OF_RANK = re.compile(r"belady-rank-(\d+)")


def of_rank(tiers: list[Tier], world: World) -> list[Tier]:
    """Returns the tiers of this process, with its own directories."""
    if world.local_rank == 0:
        return tiers
    own = f"belady-rank-{world.local_rank}"
    return [(place and os.path.join(place, own), quota) for place, quota in tiers]


def remove_unused(tiers: list[Tier], world: World) -> None:
    """Removes unused caches of processes that this job does not have on the node."""
    if world.local_rank != 0:
        return
    for place, _ in tiers:
        for directory in _unused(place, world.local_size) if place else []:
            try:
                _native.clear_caches(directory)
            except BeladyError as error:
                log.warning("the cache of an earlier job stays, beyond the quota: %s", error)


def _unused(place: str, ranks: int) -> list[str]:
    try:
        names = os.listdir(place)
    except OSError:  # it does not exist yet; opening the tier reports any other error
        return []
    numbers = {name: _OF_RANK.fullmatch(name) for name in names}
    return [
        os.path.join(place, name)
        for name, number in sorted(numbers.items())
        if number is not None and int(number[1]) >= ranks
    ]
