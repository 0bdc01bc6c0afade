"""What several processes do with a sampler that knows nothing of them.

torch's `RandomSampler` gives every process of a job the whole epoch. `Deal` shares it out as torch's
`DistributedSampler` does: sample i goes to rank i modulo the number of ranks, and the first ones
are given again at the end until every rank has as many. Of a batch sampler it deals batches.

All ranks have to draw the same. A sampler without a generator of its own draws each epoch from
seed + epoch, as `DistributedSampler` does. One with a generator is run as it is: every rank has to seed
it alike.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .distributed import World

log = logging.getLogger("belady")


@dataclass(frozen=True)
class Deal:
    """Which part of what a sampler gives is of this rank; all of it if it `is_dealt` already."""

    rank: int = 0
    ranks: int = 1
    seed: int = 0
    is_dealt: bool = False

    def share(self, length: int) -> int:
        """How many of so many are of this rank."""
        return -(-length // self.ranks) if self.is_dealt else length

    def mine(
        self, ids: array[int], ends: array[int] | None
    ) -> tuple[array[int], array[int] | None]:
        """This rank's part of an epoch."""
        if not self.is_dealt:
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

    def numbers(self, sampler: Any) -> bool:
        """Whether an epoch of the sampler follows from its number: it draws from seed + epoch."""
        return self.is_dealt and draws_from(sampler) == "default"

    @contextlib.contextmanager
    def common_generator(self, sampler: Any, epoch: int) -> Iterator[None]:
        """Lets one of torch's samplers draw from what is the same on all ranks."""
        torch: Any = sys.modules["torch"]
        sampler.generator = torch.Generator().manual_seed((self.seed + epoch) % 2**64)
        try:
            yield
        finally:
            sampler.generator = None

    def identity(self, *, batches: bool) -> list[int]:
        """Where a state was saved: a rank, and of how many; any, where all ranks draw the same."""
        if self.is_dealt:
            return [0, self.ranks if batches else 1]
        return [self.rank, self.ranks]

    def refuse_another(self, saved: object, *, batches: bool) -> bool:
        """Whether a state was saved where it is loaded. Refused if it means something else here."""
        here = self.identity(batches=batches)
        if saved == here:
            return True
        if self.is_dealt and batches:
            raise ValueError(
                f"the state was saved with {_count(saved)} ranks that share the batches of a batch_sampler, "
                f"and here are {self.ranks}; batches would be repeated or left out. Make them equal"
            )
        return False


def _count(saved: object) -> object:
    return saved[1] if isinstance(saved, list) and len(saved) == 2 else saved


def torch_sampler(sampler: Any) -> Any:
    """torch's random sampler in it: itself, or that of a `BatchSampler`; None if it is none."""
    module: Any = sys.modules.get("torch.utils.data.sampler")
    if module is None:
        return None
    if isinstance(sampler, module.BatchSampler):
        return torch_sampler(sampler.sampler)
    kinds = (module.RandomSampler, module.SubsetRandomSampler, module.WeightedRandomSampler)
    return sampler if isinstance(sampler, kinds) else None


def draws_from(sampler: object) -> str | None:
    """What one of torch's random samplers draws from: its "own" generator or the "default" one."""
    inner = torch_sampler(sampler)
    if inner is None:
        return None
    return "default" if getattr(inner, "generator", None) is None else "own"


#: What samplers that deal to ranks themselves call that, in torch, timm, torchvision and Accelerate.
_OF_RANKS = ("num_replicas", "world_size", "num_processes", "rank", "process_index")


def is_to_be_dealt(sampler: Any, wanted: bool | None, world: World) -> bool:
    """Whether the ranks share out what a sampler gives: as the user says, else if it is one of torch's
    that know nothing of ranks. Another one of which that is not known is told of."""
    if world.size == 1:
        return False
    if wanted is not None:
        return wanted
    if _is_plain(sampler):
        log.info(
            "what %s gives is shared out to %d ranks; shard_sampler=False gives each of them all of it",
            type(sampler).__name__,
            world.size,
        )
        return True
    if not _knows_ranks(sampler):
        log.warning(
            "nothing in the sampler %s tells that it knows of ranks, so each of the %d ranks reads all "
            "that it gives; shard_sampler=True shares it out, and shard_sampler=False says that this is "
            "meant, or that it shares out itself",
            type(sampler).__name__,
            world.size,
        )
    return False


def _is_plain(sampler: Any) -> bool:
    """Exactly one of torch's samplers (a subclass may do as it likes), or a batch sampler of one."""
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
