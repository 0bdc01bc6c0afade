"""Samplers that know nothing of ranks, on several of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import as_by_default as make, ids
from test_torch_order import Ids
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

import belady


def ranks(data: belady.Dataset, count: int, **arguments: Any) -> list[belady.DataLoader]:
    return [make(data, rank=rank, world_size=count, **arguments) for rank in range(count)]


def flat(loader: belady.DataLoader) -> list[int]:
    return [id_ for batch in ids(loader) for id_ in batch]


@pytest.mark.parametrize("sampler", [RandomSampler, SequentialSampler])
def test_two_ranks_take_half_the_steps_each(data: belady.Dataset, sampler: Any) -> None:
    """It was 24 steps instead of 12, with a warning about the cache only."""
    loaders = ranks(data, 2, batch_size=5, sampler=sampler(Ids(60)))
    assert [len(loader) for loader in loaders] == [6, 6]
    for _ in range(2):
        seen = [flat(loader) for loader in loaders]
        assert sorted(seen[0] + seen[1]) == list(range(60))


def test_ranks_share_what_a_weighted_sampler_gives(data: belady.Dataset) -> None:
    def loader(rank: int) -> belady.DataLoader:
        # One for each rank, as in processes.
        sampler = WeightedRandomSampler([1.0] * 30 + [0.0] * 30, 40)
        return make(data, rank=rank, world_size=2, batch_size=4, sampler=sampler)

    loaders = [loader(rank) for rank in range(2)]
    assert [len(loader) for loader in loaders] == [5, 5]
    first, second = (flat(loader) for loader in loaders)
    whole = list(
        WeightedRandomSampler(
            [1.0] * 30 + [0.0] * 30, 40, generator=torch.Generator().manual_seed(0)
        )
    )
    assert [first, second] == [whole[0::2], whole[1::2]]


def test_ranks_share_the_samples_of_a_batch_sampler_of_torch(data: belady.Dataset) -> None:
    """It is a sampler and a batch size, and these are dealt as by a DistributedSampler."""
    sampler = BatchSampler(SequentialSampler(Ids(60)), 8, drop_last=False)
    parts = [ids(loader) for loader in ranks(data, 2, batch_sampler=sampler)]
    for rank, part in enumerate(parts):
        mine = list(range(rank, 60, 2))
        assert part == [mine[i : i + 8] for i in range(0, 30, 8)]


def test_ranks_share_the_batches_of_another_batch_sampler(data: belady.Dataset) -> None:
    ragged = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11]]
    loaders = ranks(data, 2, batch_sampler=ragged, shard_sampler=True)
    first, second = (ids(loader) for loader in loaders)
    assert first == [[1, 2, 3], [5, 6], [11]]
    assert second == [[4], [7, 8, 9, 10], [1, 2, 3]]


class Unknown:
    def __iter__(self) -> Iterator[int]:
        return iter(range(60))

    def __len__(self) -> int:
        return 60


class KnowsRanks(Unknown):
    num_replicas = 2


@pytest.mark.parametrize(
    ("sampler", "shard_sampler", "steps", "warns"),
    [
        (Unknown(), None, 12, True),
        (Unknown(), False, 12, False),
        (Unknown(), True, 6, False),
        (KnowsRanks(), None, 12, False),
    ],
)
def test_a_sampler_that_cannot_be_judged_warns_once_unless_the_user_decides(
    data: belady.Dataset,
    caplog: pytest.LogCaptureFixture,
    sampler: Any,
    shard_sampler: bool | None,
    steps: int,
    warns: bool,
) -> None:
    with caplog.at_level(logging.WARNING, logger="belady"):
        loader = make(
            data, batch_size=5, sampler=sampler, rank=0, world_size=2, shard_sampler=shard_sampler
        )
    assert len(loader) == steps == len(ids(loader))
    assert ("pass shard_sampler=True to share it" in caplog.text) is warns


def test_shard_sampler_without_a_sampler_is_refused(data: belady.Dataset) -> None:
    with pytest.raises(ValueError, match="ranks always share an order that the loader makes"):
        make(data, shuffle=True, shard_sampler=True)
