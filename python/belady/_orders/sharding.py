"""Divides among ranks what a sampler gives that knows nothing of ranks.

torch's `RandomSampler` gives every process of a job the whole epoch. `Sharding` divides it as
torch's `DistributedSampler` does: sample i goes to rank i modulo the number of ranks, and the first
samples come again at the end until all ranks have equally many. Of a batch sampler it divides whole
batches.

All ranks have to draw the same. A sampler without a generator draws each epoch from seed + epoch,
as `DistributedSampler` does. One with a generator runs unchanged; every rank has to seed it alike.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._cluster.world import World

log = logging.getLogger("belady")


@dataclass(frozen=True)
class Sharding:
    """This rank's part of what a sampler gives; all of it unless `is_on`."""

    rank: int = 0
    ranks: int = 1
    seed: int = 0
    is_on: bool = False

    def share(self, length: int) -> int:
        """Returns how many of `length` samples or batches this rank gets."""
        return -(-length // self.ranks) if self.is_on else length

    def mine(
        self, ids: array[int], ends: array[int] | None
    ) -> tuple[array[int], array[int] | None]:
        """Returns this rank's part of an epoch."""
        if not self.is_on:
            return ids, ends
        if ends is None:
            return array("q", [ids[i % len(ids)] for i in self._places(len(ids))]), None
        starts = [0, *ends]
        mine, mine_ends = array("q"), array("q")
        for place in self._places(len(ends)):
            batch = place % len(ends)
            mine.extend(ids[starts[batch] : ends[batch]])
            mine_ends.append(len(mine))
        return mine, mine_ends

    def _places(self, length: int) -> range:
        return range(self.rank, self.share(length) * self.ranks, self.ranks)

    def follows_from_number(self, sampler: Any) -> bool:
        """Whether the sampler draws each epoch from seed + epoch."""
        return self.is_on and draws_from(sampler) == "default"

    @contextlib.contextmanager
    def common_generator(self, sampler: Any, epoch: int) -> Iterator[None]:
        """Lets one of torch's samplers draw from a generator that all ranks seed alike."""
        torch: Any = sys.modules["torch"]
        sampler.generator = torch.Generator().manual_seed((self.seed + epoch) % 2**64)
        try:
            yield
        finally:
            sampler.generator = None

    def identity(self, *, batches: bool) -> list[int]:
        """Returns the rank and the number of ranks that a state is valid for."""
        if self.is_on:
            # All ranks draw the same, so the state of one rank is valid for all.
            return [0, self.ranks if batches else 1]
        return [self.rank, self.ranks]

    def matches(self, saved: object, *, batches: bool) -> bool:
        """Whether a state was saved by this rank. Raises if it means something else here."""
        if saved == self.identity(batches=batches):
            return True
        if self.is_on and batches:
            raise ValueError(
                f"the state was saved with {_ranks(saved)} ranks that share the batches of a "
                f"batch_sampler, and this job has {self.ranks}; batches would be repeated or left "
                "out. Start as many ranks as then"
            )
        return False


def _ranks(saved: object) -> object:
    return saved[1] if isinstance(saved, list) and len(saved) == 2 else saved


def torch_sampler(sampler: Any) -> Any:
    """Returns torch's random sampler: itself, or that of a `BatchSampler`; None for any other."""
    module: Any = sys.modules.get("torch.utils.data.sampler")
    if module is None:
        return None
    if isinstance(sampler, module.BatchSampler):
        return torch_sampler(sampler.sampler)
    kinds = (module.RandomSampler, module.SubsetRandomSampler, module.WeightedRandomSampler)
    return sampler if isinstance(sampler, kinds) else None


def draws_from(sampler: object) -> str | None:
    """Returns which generator a random sampler of torch uses: its "own" or the "default" one."""
    inner = torch_sampler(sampler)
    if inner is None:
        return None
    return "default" if getattr(inner, "generator", None) is None else "own"


#: Attributes of samplers in torch, timm, torchvision and Accelerate that divide among ranks.
_OF_RANKS = ("num_replicas", "world_size", "num_processes", "rank", "process_index")


def is_sharded(sampler: Any, wanted: bool | None, world: World) -> bool:
    """Whether ranks share what a sampler gives.

    `wanted` is the user's decision. Without one, samplers of torch that know nothing of ranks are
    shared; for a sampler that cannot be judged a warning is logged.
    """
    if world.size == 1:
        return False
    if wanted is not None:
        return wanted
    if _is_plain(sampler):
        log.info(
            "what %s gives is shared by %d ranks; shard_sampler=False gives each of them all of it",
            type(sampler).__name__,
            world.size,
        )
        return True
    if not _knows_ranks(sampler):
        log.warning(
            "the sampler %s has no attribute that names ranks, so each of the %d ranks reads all "
            "that it gives; pass shard_sampler=True to share it, or shard_sampler=False if this is "
            "intended or it shares by itself",
            type(sampler).__name__,
            world.size,
        )
    return False


def _is_plain(sampler: Any) -> bool:
    """Whether it is exactly one of torch's samplers, or a batch sampler of one.

    A subclass may do anything.
    """
    module: Any = sys.modules.get("torch.utils.data.sampler")
    if module is None:
        return False
    if type(sampler) is module.BatchSampler:
        return _is_plain(sampler.sampler)
    return type(sampler) in (
        module.SequentialSampler,
        module.RandomSampler,
        module.SubsetRandomSampler,
        module.WeightedRandomSampler,
    )


def _knows_ranks(sampler: Any) -> bool:
    if any(hasattr(sampler, name) for name in _OF_RANKS):
        return True
    inner = (getattr(sampler, name, None) for name in ("sampler", "batch_sampler"))
    return any(_knows_ranks(one) for one in inner if one is not None and one is not sampler)
