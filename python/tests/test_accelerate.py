"""What Accelerate does with a loader: it skips batches, and gathers without padding."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from hypothesis import given, strategies
from support import ids, make
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

import belady
from belady._loader.accelerate import UNKNOWN, Padding, remainder

accelerate = pytest.importorskip("accelerate")

ORDERS: dict[str, dict[str, Any]] = {
    "shuffle": {"shuffle": True, "seed": 3, "batch_size": 7},
    "sequential": {"batch_size": 7},
    "permutation": {"shuffle": "permutation", "batch_size": 7},
    "list": {"sampler": list(range(40, 0, -1)), "batch_size": 7},
    "weighted": {"sampler": belady.Weighted([1.0] * 60), "seed": 3, "batch_size": 7},
    "batches": {"batch_sampler": [[1, 2], [3], [4, 5, 6], [7, 8]]},
}


@pytest.fixture
def accelerator() -> Any:
    made = accelerate.Accelerator(cpu=True)
    yield made
    for state in ("AcceleratorState", "GradientState", "PartialState"):
        getattr(accelerate.state, state)._reset_state()


@pytest.mark.parametrize("name", ORDERS)
def test_skipping_the_first_batches_gives_the_rest_of_the_epoch(
    data: belady.Dataset, name: str
) -> None:
    """It made a loader of torch's, which died over bytes."""
    straight, loader = (make(data, **ORDERS[name]) for _ in range(2))
    expected = [ids(straight) for _ in range(3)]
    rest = accelerate.skip_first_batches(loader, 2)
    assert len(rest) == len(expected[0]) - 2
    assert [list(batch.ids) for batch in rest] == expected[0][2:]
    assert [ids(loader), ids(loader)] == expected[1:], "it goes on with the epochs after that"


def size_and_label(sample: Any, label: int) -> tuple[int, int]:
    """Not local to the test: workers that are not forked import it."""
    return len(sample), label


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_after_a_skip_are_decoded_and_drawn_as_without_it(
    data: belady.Dataset, workers: int
) -> None:
    def fresh() -> belady.DataLoader:
        return make(
            data, batch_size=9, shuffle=True, seed=1, decode=size_and_label, num_workers=workers
        )

    whole = [(sizes.tolist(), labels.tolist()) for sizes, labels in fresh()]
    rest = accelerate.skip_first_batches(fresh(), 3)
    assert [(sizes.tolist(), labels.tolist()) for sizes, labels in rest] == whole[3:]


def test_skipping_in_a_later_epoch_and_beyond_its_end(data: belady.Dataset) -> None:
    straight, loader = (make(data, **ORDERS["shuffle"]) for _ in range(2))
    expected = [ids(straight) for _ in range(4)]
    loader.set_epoch(2)
    assert [list(batch.ids) for batch in accelerate.skip_first_batches(loader, 4)] == expected[2][
        4:
    ]
    loader.set_epoch(2)
    assert list(accelerate.skip_first_batches(loader, 9)) == []
    assert ids(loader) == expected[3]


def test_a_state_that_was_loaded_is_not_skipped_twice(data: belady.Dataset) -> None:
    first, again = (make(data, **ORDERS["shuffle"]) for _ in range(2))
    expected = ids(make(data, **ORDERS["shuffle"]))
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    again.load_state_dict(first.state_dict())
    assert [list(batch.ids) for batch in accelerate.skip_first_batches(again, 3)] == expected[3:]


def test_a_state_is_saved_while_the_rest_is_read(data: belady.Dataset) -> None:
    loader = make(data, **ORDERS["shuffle"])
    next(iter(accelerate.skip_first_batches(loader, 2)))
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 3)


def test_torchs_own_loaders_are_skipped_unchanged(data: belady.Dataset) -> None:
    list(accelerate.skip_first_batches(make(data, batch_size=7), 1))
    torchs = torch.utils.data.DataLoader(TensorDataset(torch.arange(10)), batch_size=4)
    rest = accelerate.skip_first_batches(torchs, 1)
    assert type(rest) is torch.utils.data.DataLoader
    assert [batch[0].tolist() for batch in rest] == [[4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("sampler", [False, True])
def test_skipping_in_an_order_of_torchs_generator_warns(
    data: belady.Dataset, caplog: pytest.LogCaptureFixture, sampler: bool
) -> None:
    order: dict[str, Any] = (
        {"sampler": RandomSampler(data)} if sampler else {"shuffle": True, "seed": "torch"}
    )
    with caplog.at_level(logging.WARNING, "belady"):
        iter(accelerate.skip_first_batches(make(data, batch_size=7, **order), 2))
    assert "2 batches of epoch 0 are skipped" in caplog.text and "pass seed=" in caplog.text
    caplog.clear()
    loader, again = (make(data, batch_size=7, **order) for _ in range(2))
    next(iter(loader))
    again.load_state_dict(loader.state_dict())
    with caplog.at_level(logging.WARNING, "belady"):
        iter(accelerate.skip_first_batches(again, 1))
    assert caplog.text == ""


def test_preparing_gives_the_loader_back(data: belady.Dataset, accelerator: Any) -> None:
    loader = make(data, batch_size=7)
    assert accelerator.prepare(loader) is loader
    assert accelerator.prepare_data_loader(loader) is loader


def test_accelerate_knows_the_last_batch(data: belady.Dataset, accelerator: Any) -> None:
    state = accelerator.gradient_state
    outer, inner = make(data, batch_size=25), make(data, batch_size=60)
    ends = []
    for _ in outer:
        ends.append(state.end_of_dataloader)
        for _ in inner:
            assert state.end_of_dataloader
        assert state.end_of_dataloader == ends[-1], "it is the outer one's again"
    assert ends == [False, False, True]
    assert not state.in_dataloader


def test_after_an_early_end_the_next_epoch_is_the_current_one(
    data: belady.Dataset, accelerator: Any
) -> None:
    loader = make(data, batch_size=25)
    next(iter(loader))
    assert len(ids(loader)) == 3
    assert not accelerator.gradient_state.in_dataloader


def test_where_accelerate_is_used_ranks_share_batches_in_parts(
    data: belady.Dataset, accelerator: Any
) -> None:
    loaders = [make(data, batch_size=8, rank=rank, world_size=3, peers=None) for rank in range(3)]
    for batches in zip(*map(ids, loaders), strict=True):
        laid = [sample for batch in batches for sample in batch]
        assert laid == list(range(laid[0], laid[0] + len(laid)))
    strided = make(data, batch_size=8, rank=1, world_size=3, peers=None, scheme="uniform")
    assert ids(strided)[0] == list(range(1, 24, 3))


@given(
    samples=strategies.integers(1, 70),
    ranks=strategies.integers(1, 5),
    batch=strategies.integers(1, 9),
    drop_last=strategies.booleans(),
)
def test_accelerate_cuts_off_exactly_the_padding(
    samples: int, ranks: int, batch: int, drop_last: bool
) -> None:
    """A naive reading judges: batches are dealt out, laid end to end, and cut as
    `gather_for_metrics` cuts them.
    """
    missing = -samples % ranks
    padded = [*range(samples), *(["padding"] * missing)]
    whole = len(padded) // (batch * ranks) * batch * ranks if drop_last else len(padded)
    batches = [padded[at : min(at + batch * ranks, whole)] for at in range(0, whole, batch * ranks)]
    if not batches:
        return
    last = batches[-1]
    each = len(last) // ranks
    for in_parts in (True, False):
        parts = [
            last[r * each : (r + 1) * each] if in_parts else last[r::ranks] for r in range(ranks)
        ]
        laid = [sample for part in parts for sample in part]
        found = remainder(Padding(samples, missing), ranks, batch, len(batches), in_parts)
        if found == UNKNOWN:
            assert not in_parts and laid.count("padding") > 1
        else:
            kept = laid[:found] if found > 0 else laid
            assert "padding" not in kept and len(kept) == len(last) - last.count("padding")


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ({"batch_size": 7}, Padding(60, 4)),
        ({"batch_size": 7, "scheme": "contiguous"}, Padding(60, 0)),
        ({"batch_size": 7, "sampler": belady.Weighted([1.0] * 60, num_samples=7)}, Padding(7, 1)),
        ({"batch_size": 7, "sampler": [1, 2, 3]}, None),
        ({"batch_size": 7, "sampler": [1, 2, 3], "shard_sampler": True}, Padding(3, 5)),
        ({"batch_sampler": [[1], [2]]}, None),
    ],
)
def test_the_padding_of_an_order(data: belady.Dataset, order: Any, found: Padding | None) -> None:
    loader = make(data, rank=0, world_size=8, peers=None, **order)
    assert loader._selection.padding == found


def test_the_padding_of_torchs_samplers(data: belady.Dataset) -> None:
    def padding(**order: Any) -> Padding | None:
        return make(data, rank=1, world_size=8, peers=None, **order)._selection.padding

    assert padding(sampler=DistributedSampler(data, 8, 1)) == Padding(60, 4)  # type: ignore[arg-type]
    assert padding(sampler=DistributedSampler(data, 8, 1, drop_last=True)) == Padding(60, 0)  # type: ignore[arg-type]
    assert padding(sampler=RandomSampler(data)) == Padding(60, 4)
    assert padding(batch_sampler=BatchSampler(SequentialSampler(data), 7, False)) == Padding(60, 4)
