"""Checkpoints: what was delivered is not delivered again, and what was not, is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_photos
from support import ids, make
from torch.utils.data import DistributedSampler, RandomSampler

import belady

ORDERS: dict[str, dict[str, Any]] = {
    "shuffle": {"shuffle": True, "seed": 8},
    "sequential": {},
    "permutation": {"shuffle": "permutation"},
    "distributed": {"shuffle": True, "rank": 1, "world_size": 3},
    "list": {"sampler": list(range(40, 0, -1))},
    "weighted": {"sampler": belady.Weighted([1.0] * 60)},
}


def fresh(data: belady.Dataset, name: str, **more: Any) -> belady.DataLoader:
    return make(data, batch_size=4, **ORDERS[name], **more)


def saved(loader: belady.DataLoader) -> Any:
    """A state after a trip through JSON."""
    text = json.dumps(loader.state_dict())
    assert len(text) < 5000
    return json.loads(text)


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_a_run_resumes_within_an_epoch(
    data: belady.Dataset, name: str, epoch: int, batch: int
) -> None:
    straight = fresh(data, name)
    expected = [ids(straight) for _ in range(epoch + 2)]
    first = fresh(data, name)
    for _ in range(epoch):
        ids(first)
    iterator = iter(first)
    for _ in range(batch):
        next(iterator)
    state = saved(first)
    assert (state["epoch"], state["batch"]) == (epoch, batch)
    second = fresh(data, name)
    second.load_state_dict(state)
    assert ids(second) == expected[epoch][batch:]
    assert ids(second) == expected[epoch + 1]


@pytest.mark.parametrize("name", ORDERS)
def test_a_state_saved_between_epochs_resumes_with_the_next(
    data: belady.Dataset, name: str
) -> None:
    straight = fresh(data, name)
    expected = [ids(straight) for _ in range(3)]
    first = fresh(data, name)
    ids(first)
    state = saved(first)
    assert (state["epoch"], state["batch"]) == (1, 0)
    second = fresh(data, name)
    second.load_state_dict(state)
    assert [ids(second), ids(second)] == expected[1:]


def test_a_state_saved_after_the_last_batch_leaves_nothing_of_the_epoch(
    data: belady.Dataset,
) -> None:
    straight = fresh(data, "shuffle")
    expected = [ids(straight) for _ in range(2)]
    first = fresh(data, "shuffle")
    iterator = iter(first)
    for _ in range(len(first)):
        next(iterator)
    second = fresh(data, "shuffle")
    second.load_state_dict(saved(first))
    assert ids(second) == []
    assert ids(second) == expected[1]


def test_a_batch_has_its_number_in_the_epoch_also_after_resuming(data: belady.Dataset) -> None:
    """It was counted from where the run went on."""
    loader = belady.DataLoader(data, batch_size=7, shuffle=True, seed=4)
    whole = [(batch.iteration, batch.ids) for batch in loader]
    assert [number for number, _ in whole] == list(range(len(loader)))
    first = belady.DataLoader(data, batch_size=7, shuffle=True, seed=4)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    again = belady.DataLoader(data, batch_size=7, shuffle=True, seed=4)
    again.load_state_dict(first.state_dict())
    assert [(batch.iteration, batch.ids) for batch in again] == whole[3:]
    assert next(iter(again)).iteration == 0, "of the next epoch"


def test_a_state_saved_after_a_break_is_the_next_epoch(data: belady.Dataset) -> None:
    expected = ids(fresh(data, "shuffle"))
    first = fresh(data, "shuffle")
    for number, _ in enumerate(first, start=1):
        if number == 5:
            break
    second = fresh(data, "shuffle")
    second.load_state_dict(saved(first))
    assert ids(second) == expected[5:]


def test_a_run_resumes_twice(data: belady.Dataset) -> None:
    expected = ids(fresh(data, "shuffle"))
    state, seen = None, []
    for batches in (3, 4, 100):
        loader = fresh(data, "shuffle")
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            seen.append(batch.ids)
            batches -= 1
            if batches == 0:
                break
        state = saved(loader)
    assert seen == expected


def test_after_an_early_end_the_generator_is_where_it_was(data: belady.Dataset) -> None:
    straight, first = fresh(data, "shuffle"), fresh(data, "shuffle")
    for loader in (straight, first):
        next(iter(loader))  # an epoch that is left early draws less
    expected = [ids(straight) for _ in range(2)]
    iterator = iter(first)
    for _ in range(2):
        next(iterator)
    second = fresh(data, "shuffle")
    second.load_state_dict(saved(first))
    assert [ids(second), ids(second)] == [expected[0][2:], expected[1]]


def test_after_an_early_end_and_set_epoch(data: belady.Dataset) -> None:
    straight, first = fresh(data, "shuffle"), fresh(data, "shuffle")
    for loader in (straight, first):
        next(iter(loader))
        loader.set_epoch(1)
    second = fresh(data, "shuffle")
    second.load_state_dict(saved(first))
    assert [ids(second), ids(second)] == [ids(straight), ids(straight)]


def test_a_state_does_not_count_what_was_decoded_ahead(data: belady.Dataset) -> None:
    loader = fresh(data, "shuffle", decode=lambda sample, label: len(sample), prefetch_factor=4)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert saved(loader)["batch"] == 2


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 4), (4, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_another_world_size_with_the_same_global_batch(
    data: belady.Dataset, before: int, after: int, shuffle: bool
) -> None:
    def ranks(world: int) -> list[belady.DataLoader]:
        return [
            make(data, batch_size=12 // world, shuffle=shuffle, rank=r, world_size=world, seed=4)
            for r in range(world)
        ]

    def epoch(loaders: list[belady.DataLoader]) -> list[set[int]]:
        return [
            {id_ for part in parts for id_ in part}
            for parts in zip(*(ids(loader) for loader in loaders), strict=True)
        ]

    straight = ranks(before)
    expected = [epoch(straight) for _ in range(3)]
    first = ranks(before)
    epoch(first)
    for loader in first:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
    states = [saved(loader) for loader in first]
    assert all(state == states[0] for state in states)
    second = ranks(after)
    for loader in second:
        loader.load_state_dict(states[0])
    assert epoch(second) == expected[1][2:]
    assert epoch(second) == expected[2]


def test_torch_samplers_of_the_user(data: belady.Dataset) -> None:
    def random() -> belady.DataLoader:
        generator = torch.Generator().manual_seed(3)
        return make(data, batch_size=7, sampler=RandomSampler(data, generator=generator))

    def distributed() -> belady.DataLoader:
        return make(data, batch_size=7, sampler=DistributedSampler(data, 2, 1))  # type: ignore[arg-type]

    for build in (random, distributed):
        straight = build()
        expected = ids(straight)
        first = build()
        iterator = iter(first)
        next(iterator)
        second = build()
        second.load_state_dict(saved(first))
        assert ids(second) == expected[1:]


def test_another_dataset_is_refused_loudly(data: belady.Dataset, tmp_path: Path) -> None:
    other = belady.open(make_photos(tmp_path / "other", each=20))
    state = saved(fresh(data, "shuffle"))
    with pytest.raises(ValueError, match="another dataset .fingerprint"):
        fresh(other, "shuffle").load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch_size": 5}, "global batches of 4 samples, and this loader has 5"),
        ({"drop_last": True}, "drop_last=False, and this loader has drop_last=True"),
        ({"shuffle": False}, "kind=generator, and this loader has kind=sequential"),
    ],
)
def test_another_run_is_refused(
    data: belady.Dataset, change: dict[str, Any], sentence: str
) -> None:
    state = saved(fresh(data, "shuffle"))
    other = make(data, **({"batch_size": 4, "shuffle": True} | change))
    with pytest.raises(ValueError, match=sentence):
        other.load_state_dict(state)


def test_another_seed_of_a_generator_is_refused(data: belady.Dataset) -> None:
    state = saved(fresh(data, "shuffle"))
    other = make(data, batch_size=4, shuffle=True, seed=1)
    with pytest.raises(ValueError, match="seed=8, and this loader has seed=1"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    "other",
    [
        belady.Weighted([2.0] + [1.0] * 59),
        belady.Weighted([1.0] * 60, num_samples=30),
        belady.Weighted([1.0] * 60, replacement=False),
    ],
)
def test_other_weights_are_refused(data: belady.Dataset, other: belady.Weighted) -> None:
    state = saved(fresh(data, "weighted"))
    with pytest.raises(ValueError, match="the order of samples would be another one"):
        make(data, batch_size=4, sampler=other).load_state_dict(state)


def test_a_damaged_generator_is_refused_and_changes_nothing(data: belady.Dataset) -> None:
    """It was a KeyError or a struct.error, after the loader had been stopped."""
    expected = ids(fresh(data, "shuffle"))
    loader = fresh(data, "shuffle")
    good = saved(loader)
    iterator = iter(loader)
    seen = [next(iterator).ids]
    for order in (
        {"kind": "generator", "seed": 8},
        good["order"] | {"generator": "abcd"},
        good["order"] | {"generator": 5},
    ):
        with pytest.raises(ValueError, match="generator in this state is damaged"):
            loader.load_state_dict(good | {"order": order})
    assert seen + [batch.ids for batch in iterator] == expected


def test_another_seed_is_refused_where_the_seed_decides(data: belady.Dataset) -> None:
    state = saved(fresh(data, "distributed"))
    other = make(data, batch_size=4, shuffle=True, rank=1, world_size=3, seed=1)
    with pytest.raises(ValueError, match="seed=0, and this loader has seed=1"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "error", "sentence"),
    [
        (5, TypeError, "a state is a dict"),
        ({}, ValueError, "it has no version"),
        ({"version": 99}, ValueError, "has no epoch"),
    ],
)
def test_a_dict_that_is_no_state_is_refused(
    data: belady.Dataset, state: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        fresh(data, "shuffle").load_state_dict(state)
    good = saved(fresh(data, "shuffle"))
    with pytest.raises(ValueError, match="has version 99, and this belady reads 1"):
        fresh(data, "shuffle").load_state_dict(good | {"version": 99})
    with pytest.raises(ValueError, match="position is damaged"):
        fresh(data, "shuffle").load_state_dict(good | {"batch": -1})
