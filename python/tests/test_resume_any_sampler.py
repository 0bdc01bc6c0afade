"""A state that was saved at any batch, of any sampler, on any rank: what is left is what torch
would have given, and nothing is repeated or left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from support import as_by_default as make
from test_torch_order import Ids, of
from torch.utils.data import (
    BatchSampler,
    DataLoader as TorchLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import belady

WEIGHTS = [1.0 + i % 5 for i in range(60)]
Samplers = dict[str, Callable[[Any], Any]]

#: Of torch, each from a generator or, without one, from torch's default generator.
DRAWN: Samplers = {
    "random": lambda g: RandomSampler(Ids(60), generator=g),
    "fewer": lambda g: RandomSampler(Ids(60), num_samples=33, generator=g),
    "replacement": lambda g: RandomSampler(Ids(60), True, 47, generator=g),
    "subset": lambda g: SubsetRandomSampler(range(10, 51), generator=g),
    "weighted": lambda g: WeightedRandomSampler(WEIGHTS, 45, generator=g),
    "batches": lambda g: BatchSampler(RandomSampler(Ids(60), generator=g), 9, False),
}
FIXED: Samplers = {
    "sequential": lambda g: SequentialSampler(Ids(60)),
    "list": lambda g: [7, 3, 3, 59, *range(20, 40)],
    "ragged batches": lambda g: [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]],
}
ALL = DRAWN | FIXED


@dataclass(frozen=True)
class Case:
    sampler: str
    own_generator: bool
    drop_last: bool
    batch: int
    epoch: int
    at: int

    def arguments(self) -> dict[str, Any]:
        """Of a loader, ours or torch's."""
        generator = torch.Generator().manual_seed(6) if self.own_generator else None
        sampler = ALL[self.sampler](generator)
        if "batches" in self.sampler:
            return {"batch_sampler": sampler}
        return {"sampler": sampler, "batch_size": self.batch, "drop_last": self.drop_last}


cases = st.builds(
    Case,
    sampler=st.sampled_from(sorted(ALL)),
    own_generator=st.booleans(),
    drop_last=st.booleans(),
    batch=st.integers(1, 12),
    epoch=st.integers(0, 2),
    at=st.integers(0, 7),
)


def numbered(loader: Any, batches: int | None = None) -> list[list[int]]:
    """So many batches of an epoch, or all."""
    iterator: Iterator[Any] = iter(loader)
    if batches is None:
        return [of(batch) for batch in iterator]
    return [of(next(iterator)) for _ in range(batches)]


def through_json(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases, restores=st.booleans())
def test_the_rest_of_an_epoch_is_that_of_torch(
    data: belady.Dataset, case: Case, restores: bool
) -> None:
    torch.manual_seed(case.epoch)
    theirs = TorchLoader(Ids(60), **case.arguments())
    expected = [numbered(theirs) for _ in range(case.epoch + 2)]
    at = min(case.at, len(expected[case.epoch]))

    torch.manual_seed(case.epoch)
    begun = make(data, **case.arguments())
    for epoch in range(case.epoch):
        assert numbered(begun) == expected[epoch]
    assert numbered(begun, at) == expected[case.epoch][:at]
    state, generator = through_json(begun.state_dict()), torch.get_rng_state()

    torch.manual_seed(1000)  # another process
    again = make(data, **case.arguments())
    again.load_state_dict(state)
    if restores or at == 0:
        # An epoch that has not begun is drawn when it begins, from where the program's generator
        # is.
        torch.set_rng_state(generator)
    assert numbered(again) == expected[case.epoch][at:]
    if restores:
        assert numbered(again) == expected[case.epoch + 1]


def dealt(case: Case, rank: int, ranks: int, epoch: int) -> list[list[int]]:
    """A naive model: what the sampler gives, dealt out as by a DistributedSampler."""
    arguments = case.arguments()
    sampler = arguments.get("batch_sampler", arguments.get("sampler"))
    inner = getattr(sampler, "sampler", sampler)
    if hasattr(inner, "generator"):
        runs = 1
        if inner.generator is None:
            inner.generator = torch.Generator().manual_seed(epoch)
        else:
            runs = epoch + 1  # all ranks have seeded it alike, and it goes on
        for _ in range(runs):
            whole = list(sampler)
    else:
        whole = list(sampler)
    batch, drop_last = case.batch, case.drop_last
    if case.sampler == "batches":  # a sampler and a batch size
        whole, batch, drop_last = [id_ for part in whole for id_ in part], 9, False
    each = -(-len(whole) // ranks)
    mine = [whole[i % len(whole)] for i in range(rank, each * ranks, ranks)]
    if case.sampler == "ragged batches":
        return mine
    batches = [mine[i : i + batch] for i in range(0, len(mine), batch)]
    return [b for b in batches if len(b) == batch or not drop_last]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases, ranks=st.integers(2, 4), data_=st.data())
def test_ranks_share_a_sampler_that_knows_nothing_of_them_and_resume(
    data: belady.Dataset, case: Case, ranks: int, data_: st.DataObject
) -> None:
    rank = data_.draw(st.integers(0, ranks - 1))
    place = {"rank": rank, "world_size": ranks, "shard_sampler": True}
    expected = [dealt(case, rank, ranks, epoch) for epoch in range(case.epoch + 2)]
    at = min(case.at, len(expected[case.epoch]))

    torch.manual_seed(rank)  # as scripts do, so that dropout differs
    begun = make(data, **case.arguments(), **place)
    for epoch in range(case.epoch):
        assert numbered(begun) == expected[epoch]
    assert numbered(begun, at) == expected[case.epoch][:at]
    state = through_json(begun.state_dict())

    torch.manual_seed(1000 + rank)
    again = make(data, **case.arguments(), **place)
    again.load_state_dict(state)
    assert numbered(again) == expected[case.epoch][at:]
    assert numbered(again) == expected[case.epoch + 1]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    ranks=st.integers(1, 4),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    batch=st.integers(1, 12),
    epoch=st.integers(0, 2),
    at=st.integers(0, 7),
)
def test_ranks_with_a_distributed_sampler_resume(
    data: belady.Dataset,
    ranks: int,
    shuffle: bool,
    drop_last: bool,
    batch: int,
    epoch: int,
    at: int,
) -> None:
    def sampler() -> Any:
        return DistributedSampler(Ids(60), ranks, ranks - 1, shuffle=shuffle, drop_last=drop_last)

    theirs = sampler()
    theirs.set_epoch(epoch)
    expected = numbered(TorchLoader(Ids(60), batch, sampler=theirs))
    at = min(at, len(expected))

    ours = sampler()
    begun = make(data, batch_size=batch, sampler=ours, rank=ranks - 1, world_size=ranks)
    ours.set_epoch(epoch)
    assert numbered(begun, at) == expected[:at]
    again = make(data, batch_size=batch, sampler=sampler(), rank=ranks - 1, world_size=ranks)
    again.load_state_dict(through_json(begun.state_dict()))
    assert numbered(again) == expected[at:]


def test_a_sampler_that_draws_something_else_after_a_restart_is_refused(
    data: belady.Dataset,
) -> None:
    """It was silent: 144 of 600 samples came twice, and as many never."""
    import random

    class Mine:
        def __init__(self, seed: int) -> None:
            self.random = random.Random(seed)

        def __iter__(self) -> Iterator[int]:
            return iter(self.random.sample(range(60), 60))

    begun = make(data, batch_size=7, sampler=Mine(1))
    numbered(begun, 3)
    state = through_json(begun.state_dict())
    again = make(data, batch_size=7, sampler=Mine(2))
    again.load_state_dict(state)
    with pytest.raises(ValueError, match="gives another order in epoch 0 than when the state"):
        numbered(again)
    seeded = make(data, batch_size=7, sampler=Mine(1))
    seeded.load_state_dict(state)
    assert len(numbered(seeded)) == 6


def test_a_state_of_another_rank_that_drew_for_itself_is_refused(data: belady.Dataset) -> None:
    def loader(rank: int) -> belady.DataLoader:
        return make(
            data,
            batch_size=7,
            sampler=RandomSampler(Ids(60)),
            rank=rank,
            world_size=2,
            shard_sampler=False,
        )

    begun = loader(0)
    numbered(begun, 3)
    with pytest.raises(ValueError, match="load it on the same rank"):
        loader(1).load_state_dict(through_json(begun.state_dict()))
