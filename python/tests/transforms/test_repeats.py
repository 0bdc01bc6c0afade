"""A sample that comes more than once in an epoch draws other numbers each time, in all ways to transform
alike.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import as_by_default, make

import belady
from belady import transforms as T

TRAIN = [T.Decode(), T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()]
#: Each sample three times in a row, as repeated augmentation has it.
REPEATED = [id_ for id_ in range(8) for _ in range(3)]


def crops(images: belady.Dataset, **arguments: Any) -> list[torch.Tensor]:
    with make(images, batch_size=6, transform=TRAIN, seed=1, **arguments) as loader:
        return [tensors.clone() for tensors, _ in loader]


def test_the_same_sample_twice_in_an_epoch_gets_two_crops(images: belady.Dataset) -> None:
    """They were identical, so repeated augmentation had no effect."""
    made = torch.cat(crops(images, sampler=REPEATED))
    for first in range(0, len(REPEATED), 3):
        one, two, three = made[first : first + 3]
        assert (
            not torch.equal(one, two)
            and not torch.equal(two, three)
            and not torch.equal(one, three)
        )


@pytest.mark.parametrize("how", [{"num_threads": 3}, {"num_workers": 2}, {"cache": []}])
def test_threads_and_processes_draw_the_same_crops_of_repeated_samples(
    images: belady.Dataset, how: dict[str, Any]
) -> None:
    expected = crops(images, sampler=REPEATED, num_threads=1)
    assert all(map(torch.equal, crops(images, sampler=REPEATED, **how), expected))


def test_a_function_in_the_chain_changes_no_draw_of_a_repeated_sample(
    images: belady.Dataset,
) -> None:
    expected = crops(images, sampler=REPEATED)
    with make(images, batch_size=6, transform=[*TRAIN, same], seed=1, sampler=REPEATED) as loader:
        made = [tensors.clone() for tensors, _ in loader]
    assert all(map(torch.equal, made, expected))


def same(value: Any) -> Any:
    return value


def test_a_resumed_run_draws_for_repeated_samples_as_the_whole_run(
    images: belady.Dataset,
) -> None:
    expected = crops(images, sampler=REPEATED)
    begun = make(images, batch_size=6, transform=TRAIN, seed=1, sampler=REPEATED)
    iterator = iter(begun)
    for _ in range(2):
        next(iterator)
    again = make(images, batch_size=6, transform=TRAIN, seed=1, sampler=REPEATED)
    again.load_state_dict(begun.state_dict())
    made = [tensors.clone() for tensors, _ in again]
    assert len(made) == len(expected) - 2 and all(map(torch.equal, made, expected[2:]))


def test_ranks_draw_apart_where_they_may_have_the_same_sample(images: belady.Dataset) -> None:
    one, two = (
        crops(images, sampler=[0] * 6, rank=rank, world_size=2, shard_sampler=False)
        for rank in (0, 1)
    )
    assert not torch.equal(one[0], two[0])


def test_weights_draw_a_sample_anew_each_time(images: belady.Dataset) -> None:
    only = belady.Weighted([1.0] + [0.0] * (len(images) - 1), num_samples=6)
    made = crops(images, sampler=only)[0]
    assert not torch.equal(made[0], made[1])


def test_two_seeds_of_torch_give_two_augmentations(images: belady.Dataset) -> None:
    """They were the same, so that a study over seeds shared its data."""

    def made(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        with as_by_default(images, batch_size=8, transform=TRAIN) as loader:
            return next(iter(loader))[0].clone()

    assert torch.equal(made(1), made(1))
    assert not torch.equal(made(1), made(2))


def test_without_set_epoch_a_sampler_repeats_the_order_and_not_the_crops(
    images: belady.Dataset,
) -> None:
    sampler: Any = torch.utils.data.DistributedSampler(range(len(images)), 1, 0)  # type: ignore[arg-type]
    with make(images, batch_size=8, transform=TRAIN, sampler=sampler) as loader:
        first, second = (
            [(list(batch.ids), batch[0].clone()) for batch in loader] for _ in range(2)
        )
    assert [ids for ids, _ in first] == [ids for ids, _ in second]
    assert not any(torch.equal(one, two) for (_, one), (_, two) in zip(first, second, strict=True))
