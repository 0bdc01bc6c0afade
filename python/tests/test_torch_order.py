"""The order is torch's, over several epochs, however epochs end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support import ids, make
from torch.utils.data import (
    BatchSampler,
    DataLoader as TorchLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import belady

EPOCHS = 4


class Ids(Dataset[int]):
    """A dataset for torch that gives ids."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


def theirs(loader: Iterable[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("batch_size", [1, 7, 15, 20, 60])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shuffle_is_a_dataloader_with_a_seeded_generator(
    data: belady.Dataset, batch_size: int, drop_last: bool
) -> None:
    generator = torch.Generator().manual_seed(11)
    torch_loader = TorchLoader(
        Ids(60), batch_size, shuffle=True, drop_last=drop_last, generator=generator
    )
    loader = make(data, batch_size=batch_size, shuffle=True, drop_last=drop_last, seed=11)
    assert len(loader) == len(torch_loader)
    for _ in range(EPOCHS):
        assert ids(loader) == theirs(torch_loader)


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_several_ranks_are_a_distributed_sampler(
    data: belady.Dataset, world_size: int, shuffle: bool, drop_last: bool
) -> None:
    for rank in (0, world_size - 1):
        sampler: Any = DistributedSampler(Ids(60), world_size, rank, shuffle=shuffle, seed=3)
        torch_loader = TorchLoader(Ids(60), 7, sampler=sampler, drop_last=drop_last)
        loader = make(
            data,
            batch_size=7,
            shuffle=shuffle,
            seed=3,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        assert len(loader) == len(torch_loader)
        assert len(loader.sampler) == len(sampler)
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            assert ids(loader) == theirs(torch_loader)


def test_random_endings_draw_as_torch_draws(data: belady.Dataset) -> None:
    """Loops that are left early, counted out, or run to the end, in any sequence."""
    draw = random.Random(1)
    for batch_size in (7, 15):
        generator = torch.Generator().manual_seed(5)
        torch_loader = TorchLoader(Ids(60), batch_size, shuffle=True, generator=generator)
        loader = make(data, batch_size=batch_size, shuffle=True, seed=5)
        for _ in range(12):
            wanted = draw.choice([1, 2, len(loader) - 1, len(loader), None])
            assert first(loader, wanted) == first(torch_loader, wanted)


def test_steps_per_epoch_draw_as_torch_draws(data: belady.Dataset) -> None:
    """The same number of batches again and again, and then more or less."""
    for batch_size, steps in ((7, 3), (15, 4), (7, 8)):
        generator = torch.Generator().manual_seed(5)
        torch_loader = TorchLoader(Ids(60), batch_size, shuffle=True, generator=generator)
        loader = make(data, batch_size=batch_size, shuffle=True, seed=5)
        for wanted in (steps, steps, steps, steps, steps + 1, steps, None, steps, steps, 1, None):
            if wanted is None or wanted <= len(loader):
                assert first(loader, wanted) == first(torch_loader, wanted)


@pytest.mark.parametrize(
    "order", [{"shuffle": True}, {}, {"shuffle": True, "rank": 0, "world_size": 2}]
)
def test_steps_per_epoch_keep_the_cache(data: belady.Dataset, order: dict[str, Any]) -> None:
    loader = make(data, batch_size=5, cache="ram:10MiB", **order)
    for _ in range(4):
        first(loader, 4)
    pipeline = loader._reader.pipeline
    for epoch in range(4, 12):
        assert [batch.epoch for _, batch in zip(range(4), loader)] == [epoch] * 4
    assert loader._reader.pipeline is pipeline


def test_a_state_saved_between_steps_per_epoch_resumes(data: belady.Dataset) -> None:
    straight, loader = (make(data, batch_size=7, shuffle=True) for _ in range(2))
    for one in (straight, loader):
        for _ in range(5):
            first(one, 3)
    next(iter(loader))
    resumed = make(data, batch_size=7, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert ids(resumed) == ids(straight)[1:]


def first(loader: Any, batches: int | None) -> list[list[int]]:
    """So many batches, or all, and whatever torch does at the end of a loop."""
    if batches is None:
        return [of(batch) for batch in loader]
    iterator = iter(loader)
    return [of(next(iterator)) for _ in range(batches)]


def of(batch: Any) -> list[int]:
    if isinstance(batch, torch.Tensor):
        return [int(value) for value in batch]
    return list(batch.ids)


@pytest.mark.parametrize("workers", [1, 2])
def test_early_ends_as_with_workers(data: belady.Dataset, workers: int) -> None:
    """torch's workers ask the sampler ahead, so an end near the last batch uses it up."""
    for stop in (1, 2, 3, 4):
        generator = torch.Generator().manual_seed(5)
        torch_loader = TorchLoader(
            Ids(60), 15, shuffle=True, generator=generator, num_workers=workers
        )
        loader = make(data, batch_size=15, shuffle=True, seed=5, num_workers=workers)
        assert first(loader, stop) == first(torch_loader, stop)
        assert ids(loader) == theirs(torch_loader)


def test_a_generator_is_used_from_where_it_stands_and_moved_as_torch_moves_it(
    data: belady.Dataset,
) -> None:
    ours, torchs = (torch.Generator().manual_seed(2) for _ in range(2))
    for generator in (ours, torchs):
        torch.randperm(100, generator=generator)
    torch_loader = TorchLoader(Ids(60), 16, shuffle=True, generator=torchs)
    loader = make(data, batch_size=16, shuffle=True, generator=ours)
    for epoch in range(EPOCHS):
        stop = 2 if epoch == 1 else None
        assert first(loader, stop) == first(torch_loader, stop)
        assert torch.randint(1000, (3,), generator=ours).tolist() == (
            torch.randint(1000, (3,), generator=torchs).tolist()
        )


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "random": lambda g: RandomSampler(Ids(60), generator=g),
    "sequential": lambda g: SequentialSampler(Ids(60)),
    "replacement": lambda g: RandomSampler(Ids(60), replacement=True, num_samples=50, generator=g),
    "subset": lambda g: SubsetRandomSampler(range(10, 40), generator=g),
    "weighted": lambda g: WeightedRandomSampler([1.0] * 30 + [2.0] * 30, 40, generator=g),
    "random by default generator": lambda g: RandomSampler(Ids(60)),
    "subset by default generator": lambda g: SubsetRandomSampler(range(50)),
    "list": lambda g: [5, 3, 8, 8, 1],
}


# Run ahead, other samplers cannot share their generator with the loader's base seeds.
SHARING = ("random", "sequential", "random by default generator", "list")


@pytest.mark.parametrize(
    ("name", "same_generator"),
    [(name, False) for name in SAMPLERS] + [(name, True) for name in SHARING],
)
def test_samplers_of_the_user_give_their_own_order(
    data: belady.Dataset, name: str, same_generator: bool
) -> None:
    def run(make_loader: Callable[..., Any], source: Any) -> list[list[list[int]]]:
        torch.manual_seed(77)
        generator = torch.Generator().manual_seed(9)
        loader = make_loader(
            source,
            batch_size=8,
            sampler=SAMPLERS[name](generator),
            generator=generator if same_generator else None,
        )
        return [[of(batch) for batch in loader] for _ in range(3)]

    assert run(make, data) == run(TorchLoader, Ids(60))


def test_a_batch_sampler_gives_its_own_batches(data: belady.Dataset) -> None:
    ragged = [[1, 2, 3], [4], [5, 6]]
    loader = make(data, batch_sampler=ragged)
    assert len(loader) == 3
    assert loader.batch_size is None
    for _ in range(2):
        assert ids(loader) == ragged
    batches = BatchSampler(SequentialSampler(Ids(60)), 25, drop_last=True)
    loader = make(data, batch_sampler=batches)
    assert ids(loader) == list(batches)
    assert loader.batch_sampler is batches


def distributed_sampler() -> Any:
    return DistributedSampler(Ids(60), 4, 1, seed=6, drop_last=True)


def test_a_distributed_sampler_of_the_user_decides_by_its_epoch(data: belady.Dataset) -> None:
    ours, torchs = (distributed_sampler() for _ in range(2))
    loader = make(data, batch_size=4, sampler=ours)
    torch_loader = TorchLoader(Ids(60), 4, sampler=torchs)
    for epoch in (0, 1, 2, 7, 7, 3):
        ours.set_epoch(epoch)
        torchs.set_epoch(epoch)
        assert ids(loader) == theirs(torch_loader)
    assert loader.sampler is ours


def test_the_default_generator_is_left_where_torch_leaves_it(data: belady.Dataset) -> None:
    """Dropout draws from it, so a loss curve depends on it."""

    def drawn(loader: Any) -> list[float]:
        torch.manual_seed(4)
        values = []
        for _ in range(3):
            for _ in loader:
                values.append(float(torch.rand(())))
        return values

    assert drawn(make(data, batch_size=20)) == drawn(TorchLoader(Ids(60), 20))
    seeded = TorchLoader(Ids(60), 20, shuffle=True, generator=torch.Generator().manual_seed(0))
    assert drawn(make(data, batch_size=20, shuffle=True)) == drawn(seeded)


def test_set_epoch_jumps(data: belady.Dataset) -> None:
    loader = make(data, batch_size=20, shuffle=True, rank=0, world_size=2)
    epochs = [ids(loader) for _ in range(4)]
    loader.set_epoch(1)
    assert ids(loader) == epochs[1]
    assert ids(loader) == epochs[2]
    loader.sampler.set_epoch(0)
    assert ids(loader) == epochs[0]
    alone = make(data, batch_size=20, shuffle=True)
    epochs = [ids(alone) for _ in range(4)]
    alone.set_epoch(1)
    assert [ids(alone), ids(alone)] == epochs[1:3]
    alone.set_epoch(3)
    assert ids(alone) == epochs[3]


def test_an_iterator_without_a_next_changes_nothing(data: belady.Dataset) -> None:
    loader, plain = (make(data, batch_size=20, shuffle=True) for _ in range(2))
    iter(loader)
    assert ids(loader) == ids(plain)


def test_the_shown_sampler_gives_the_ids_that_come(data: belady.Dataset) -> None:
    loader = make(data, batch_size=25, shuffle=True)
    shown = list(loader.batch_sampler)
    assert [id_ for batch in shown for id_ in batch] == list(loader.sampler)
    assert ids(loader) == shown
    next(iter(loader))  # left early
    loader.set_epoch(2)
    shown = list(loader.batch_sampler)
    assert shown == list(loader.batch_sampler)
    assert ids(loader) == shown
    assert len(loader.batch_sampler) == 3
    assert loader.batch_sampler.batch_size == 25


def test_set_epoch_of_a_sampler_is_called(data: belady.Dataset) -> None:
    class Rotating:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([(i + self.epoch) % 60 for i in range(60)])

    loader = make(data, batch_size=60, sampler=Rotating())
    assert [ids(loader)[0][0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(TypeError, match="has no length"):
        len(make(data, sampler=iter([1])))


def test_weights_decide_how_often(data: belady.Dataset) -> None:
    weights = [1.0 if i < 6 else 0.0 for i in range(60)]
    loader = make(data, batch_size=20, sampler=belady.Weighted(weights, num_samples=100), seed=1)
    epoch = [id_ for batch in ids(loader) for id_ in batch]
    assert len(epoch) == 100 and set(epoch) == set(range(6))
    assert epoch != [id_ for batch in ids(loader) for id_ in batch]
    again = make(data, batch_size=20, sampler=belady.Weighted(weights, num_samples=100), seed=1)
    assert epoch == [id_ for batch in ids(again) for id_ in batch]


def test_ranks_share_a_weighted_epoch(data: belady.Dataset) -> None:
    sampler = belady.Weighted([1.0] * 60, num_samples=40)
    whole = make(data, batch_size=40, sampler=sampler)
    parts = [make(data, batch_size=20, sampler=sampler, rank=r, world_size=2) for r in (0, 1)]
    assert sorted(ids(whole)[0]) == sorted(id_ for part in parts for id_ in ids(part)[0])


def test_a_mixture_takes_from_each_dataset_by_weight(
    data: belady.Dataset, record_data: belady.Dataset
) -> None:
    mixture = belady.Mixture([data, record_data], weights=[0.25, 0.75], num_samples=400)
    loader = make(mixture, batch_size=50)
    epoch = [id_ for batch in ids(loader) for id_ in batch]
    from_records = sum(id_ >= 60 for id_ in epoch)
    assert len(epoch) == 400 and 250 < from_records < 350
    # Each dataset is gone through before it begins again.
    assert len(set(epoch[:50])) == 50
    assert loader.dataset is mixture.dataset


def test_an_error_names_the_failing_sampler(data: belady.Dataset) -> None:
    class Wrong:
        def __init__(self, *given: Any) -> None:
            self.given = given

        def __iter__(self) -> Any:
            return iter(self.given)

    with pytest.raises(IndexError, match="gave 60 at position 1, but the dataset has 60 samples"):
        ids(make(data, sampler=Wrong(3, 60)))
    with pytest.raises(IndexError, match="gave -1 at position 0"):
        ids(make(data, sampler=Wrong(-1)))
    with pytest.raises(TypeError, match="gave 'x' .str. at position 2"):
        ids(make(data, sampler=Wrong(0, 1, "x")))
    with pytest.raises(ValueError, match="gave nothing in epoch 0"):
        ids(make(data, sampler=Wrong()))


def test_the_traceback_of_a_sampler_shows_its_own_line(data: belady.Dataset) -> None:
    def broken() -> Any:
        yield 1
        raise KeyError("my own mistake")

    class Broken:
        def __iter__(self) -> Any:
            return broken()

    with pytest.raises(KeyError, match="my own mistake") as raised:
        ids(make(data, sampler=Broken()))
    assert raised.traceback[-1].name == "broken"


def test_a_generator_that_ends_early_is_an_error(data: belady.Dataset) -> None:
    loader = make(data, batch_size=2, sampler=(i for i in range(4)))
    assert ids(loader) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="a generator can be iterated only once"):
        ids(loader)

    class Short:
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Any:
            return iter(range(4))

    with pytest.raises(ValueError, match="length of 10, but ended after 4 in epoch 0"):
        ids(make(data, sampler=Short()))


def test_an_endless_sampler_is_refused(data: belady.Dataset) -> None:
    class Endless:
        def __iter__(self) -> Any:
            while True:
                yield 1

    with pytest.raises(ValueError, match="cut an endless sampler into epochs"):
        ids(make(data, sampler=Endless()))


class EveryOther(DistributedSampler):  # type: ignore[type-arg]
    """Not torch's own, so it is run."""


@pytest.mark.parametrize("epochs", [[0, 1, 2], [30, 31, 32], [5, 2, 9]])
def test_the_loader_follows_set_epoch_of_a_users_sampler(
    data: belady.Dataset, epochs: list[int]
) -> None:
    """It got the loader's own count, so a script that resumed at epoch 30 got epoch 0."""
    ours, theirs = EveryOther(data, 2, 1), EveryOther(data, 2, 1)  # type: ignore[arg-type]
    loader = make(data, batch_size=7, sampler=ours)
    for epoch in epochs:
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        assert [id_ for batch in ids(loader) for id_ in batch] == list(theirs)
        assert loader.epoch == epoch + 1


def test_a_long_sampler_over_few_samples_is_not_endless(data: belady.Dataset) -> None:
    """More than a hundred times the dataset was taken to be endless, whatever its length."""
    loader = make(data, batch_size=100, sampler=[7, 9] * 4000)
    assert sum(len(batch.ids) for batch in loader) == 8000
    batches = make(data, batch_sampler=[[7] * 100] * 80)
    assert sum(len(batch.ids) for batch in batches) == 8000


@pytest.mark.parametrize("is_batch_sampler", [False, True])
def test_two_loaders_that_share_a_sampler_draw_in_turn_as_with_torch(
    data: belady.Dataset, is_batch_sampler: bool
) -> None:
    """Each ran the sampler ahead, and so took the draws of the other's epochs."""

    def pair(loader: Callable[..., Any], samples: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(8)
        sampler: Any = WeightedRandomSampler(range(1, 61), 60, generator=generator)
        if is_batch_sampler:
            # Unlike torch's own, it is run as it is.
            sampler = type("Batches", (BatchSampler,), {})(sampler, 7, False)
            return [loader(samples, batch_sampler=sampler) for _ in range(2)]
        return [loader(samples, batch_size=7, sampler=sampler) for _ in range(2)]

    expected, loaders = pair(TorchLoader, Ids(60)), pair(make, data)
    for _ in range(EPOCHS):
        for torch_loader, loader in zip(expected, loaders, strict=True):
            assert ids(loader) == theirs(torch_loader)
