"""`torch.manual_seed` decides about the order and about what transforms draw, as with torch's
loader.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import as_by_default as make, ids
from test_torch_order import Ids, first
from torch.utils.data import DataLoader as TorchLoader

import belady


def run(
    loader_of: Callable[[], Any],
    *,
    seed: int = 3,
    epochs: int = 4,
    between: Callable[[int], object] = lambda epoch: None,
    stop: Callable[[int], int | None] = lambda epoch: None,
) -> tuple[list[list[list[int]]], torch.Tensor]:
    """The ids of some epochs, and where torch's generator is after them."""
    torch.manual_seed(seed)
    loader = loader_of()
    seen = []
    for epoch in range(epochs):
        seen.append(first(loader, stop(epoch)))
        between(epoch)
    return seen, torch.get_rng_state()


def assert_alike(data: belady.Dataset, *, arguments: dict[str, Any], **how: Any) -> None:
    """Ours and torch's give the same ids, and leave torch's generator at the same place."""
    theirs = run(lambda: TorchLoader(Ids(60), 7, shuffle=True, **arguments), **how)
    ours = run(lambda: make(data, batch_size=7, shuffle=True, **arguments), **how)
    assert ours[0] == theirs[0]
    assert torch.equal(ours[1], theirs[1])


def rand(count: int) -> None:
    torch.rand(count)


@pytest.mark.parametrize(
    "between",
    [
        lambda epoch: None,
        lambda epoch: rand(10),
        lambda epoch: rand(10_000),
        lambda epoch: rand(epoch * 7),
        lambda epoch: torch.manual_seed(99),
        lambda epoch: rand(3_000_000),  # too many to be guessed
        lambda epoch: torch.randn(5),  # the generator keeps one more number for the next time
    ],
    ids=["nothing", "a little", "more", "another number", "seeded again", "very much", "normal"],
)
def test_the_order_is_that_of_torch_whatever_the_program_draws_between_epochs(
    data: belady.Dataset, between: Callable[[int], object]
) -> None:
    assert_alike(data, arguments={}, between=between)


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_manual_seed_gives_the_order_of_torch(data: belady.Dataset, seed: int) -> None:
    assert_alike(data, arguments={}, seed=seed)
    assert_alike(data, arguments={"drop_last": True}, seed=seed)


@pytest.mark.parametrize("stop", [[1, None, 3, 9], [9, 9, 9, None], [2, 2, 2, 2]])
def test_epochs_that_are_left_early_draw_as_with_torch(
    data: belady.Dataset, stop: list[int | None]
) -> None:
    assert_alike(data, arguments={}, stop=lambda epoch: stop[epoch])


@pytest.mark.parametrize("persistent", [False, True])
def test_with_workers_the_order_is_that_of_torch(data: belady.Dataset, persistent: bool) -> None:
    assert_alike(data, arguments={"num_workers": 1, "persistent_workers": persistent})


def test_training_and_validation_draw_in_turns(data: belady.Dataset) -> None:
    """As in every training script: the validation loader takes base seeds from the same generator."""

    def epochs(loader_of: Callable[..., Any], source: Any) -> list[Any]:
        torch.manual_seed(5)
        train, check = (
            loader_of(source, batch_size=7, shuffle=True),
            loader_of(source, batch_size=30),
        )
        return [(first(train, None), first(check, None)) for _ in range(4)]

    assert epochs(make, data) == epochs(TorchLoader, Ids(60))


def test_data_read_ahead_is_kept_while_the_program_draws_alike(data: belady.Dataset) -> None:
    """A wrong guess restarts the engine's job; from the third epoch on there is none."""
    torch.manual_seed(1)
    loader = make(data, batch_size=7, shuffle=True, cache="ram:10MiB")
    for epoch in range(6):
        ids(loader)
        torch.rand(100)
        if epoch == 2:
            pipeline = loader._reader.pipeline
    assert loader._reader.pipeline is pipeline


def test_two_seeds_give_two_orders_and_a_fixed_seed_stays(data: belady.Dataset) -> None:
    def order(of_torch: int, **arguments: Any) -> list[list[int]]:
        torch.manual_seed(of_torch)
        return ids(make(data, batch_size=20, shuffle=True, **arguments))

    assert order(1) != order(2)
    assert order(1) == order(1)
    assert order(1, seed=7) == order(2, seed=7)


@pytest.mark.parametrize(
    "order", [{"shuffle": "permutation"}, {"sampler": belady.Weighted([1.0] * 60)}]
)
def test_orders_of_our_own_follow_manual_seed_too(
    data: belady.Dataset, order: dict[str, Any]
) -> None:
    def first_epoch(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return ids(make(data, batch_size=20, **order))

    assert first_epoch(1) != first_epoch(2)
    assert first_epoch(1) == first_epoch(1)


def test_several_ranks_shuffle_as_a_distributed_sampler_whatever_the_seed(
    data: belady.Dataset,
) -> None:
    """torch's DistributedSampler has its own seed, 0, so that all ranks draw alike."""

    def order(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return ids(make(data, batch_size=7, shuffle=True, rank=1, world_size=2))

    assert (
        order(1)
        == order(2)
        == ids(make(data, batch_size=7, shuffle=True, rank=1, world_size=2, seed=0))
    )


def test_without_a_seed_it_is_torchs() -> None:
    assert inspect.signature(belady.DataLoader).parameters["seed"].default == "torch"


def test_without_torch_the_seed_is_zero(photos: Path) -> None:
    program = f"""if True:
        import sys, belady
        data = belady.open({str(photos)!r})
        loaders = [belady.DataLoader(data, batch_size=20, shuffle=True, cache="ram:100KB", **seed)
                   for seed in ({{}}, {{"seed": 0}})]
        first, second = ([list(batch.ids) for batch in loader] for loader in loaders)
        assert "torch" not in sys.modules
        print(first == second)
    """
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "True"


def test_a_state_within_an_epoch_continues_its_order(data: belady.Dataset) -> None:
    torch.manual_seed(2)
    straight = make(data, batch_size=7, shuffle=True)
    whole = [ids(straight) for _ in range(2)][1]
    torch.manual_seed(2)
    begun = make(data, batch_size=7, shuffle=True)
    ids(begun)
    iterator = iter(begun)
    assert [list(next(iterator).ids) for _ in range(3)] == whole[:3]
    state = begun.state_dict()
    torch.manual_seed(1234)  # whatever the new process has drawn
    again = make(data, batch_size=7, shuffle=True)
    again.load_state_dict(state)
    assert ids(again) == whole[3:]


def test_a_program_that_restores_its_generator_continues_as_if_it_had_not_stopped(
    data: belady.Dataset,
) -> None:
    torch.manual_seed(2)
    straight = make(data, batch_size=7, shuffle=True)
    whole = [ids(straight) for _ in range(4)]
    torch.manual_seed(2)
    begun = make(data, batch_size=7, shuffle=True)
    ids(begun)
    iterator = iter(begun)
    next(iterator)
    state, generator = begun.state_dict(), torch.get_rng_state()
    torch.manual_seed(1234)
    again = make(data, batch_size=7, shuffle=True)
    again.load_state_dict(state)
    torch.set_rng_state(generator)
    assert [ids(again) for _ in range(3)] == [whole[1][1:], *whole[2:]]


def test_ranks_that_resume_a_run_of_one_process_share_every_later_epoch(
    data: belady.Dataset,
) -> None:
    """After `set_epoch` each rank drew from its own generator: 18 of 24 samples came."""
    torch.manual_seed(3)
    alone = make(data, batch_size=4, shuffle=True)
    next(iter(alone))
    state = alone.state_dict()
    seen: list[int] = []
    for rank in range(2):
        torch.manual_seed(100 + rank)
        loader = make(data, batch_size=2, shuffle=True, rank=rank, world_size=2, peers=None)
        loader.load_state_dict(state)
        loader.set_epoch(1)
        seen += [id_ for batch in ids(loader) for id_ in batch]
    assert sorted(seen) == list(range(60))


@pytest.mark.parametrize(
    "order", [{"shuffle": "permutation"}, {"sampler": belady.Weighted([1.0] * 60)}]
)
def test_several_ranks_resume_with_the_seed_that_one_process_drew(
    data: belady.Dataset, order: dict[str, Any]
) -> None:
    torch.manual_seed(5)
    alone = make(data, batch_size=4, **order)
    expected = ids(alone)
    again = make(data, batch_size=4, **order)
    next(iter(again))
    state = again.state_dict()
    parts = []
    for rank in range(2):
        loader = make(data, batch_size=2, rank=rank, world_size=2, peers=None, **order)
        loader.load_state_dict(state)
        parts.append(ids(loader))
    both = [sorted(one + other) for one, other in zip(*parts, strict=True)]
    assert both == [sorted(batch) for batch in expected[1:]]
