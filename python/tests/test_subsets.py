"""`Subset` and `random_split` of torch over our datasets: the orders are torch's."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starting import PROLOGUE, torchrun
from support import make
from torch.utils.data import (
    DataLoader as TorchLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)

import belady

CHOSEN = [50, 3, 3, 17, 59, 0, 41, 22, 8, 30, 31, 12, 45]


def paths_of(loader: belady.DataLoader) -> list[list[str]]:
    return [list(batch.paths) for batch in loader]


def subset_of_paths(data: belady.Dataset, indices: Any) -> Any:
    """The same `Subset` of what torch's loader can collate."""
    return Subset(list(data.paths), indices)  # type: ignore[arg-type]


def theirs(data: belady.Dataset, indices: Any, **options: Any) -> list[list[str]]:
    return [list(batch) for batch in TorchLoader(subset_of_paths(data, indices), **options)]


@pytest.mark.parametrize(
    "indices",
    [CHOSEN, range(5, 60, 7), np.array(CHOSEN), torch.tensor(CHOSEN), tuple(CHOSEN), [-1, 0, -60]],
    ids=["list", "range", "numpy", "torch", "tuple", "negative"],
)
def test_a_subset_is_read_as_torch_reads_it(data: belady.Dataset, indices: Any) -> None:
    part: Any = Subset(data, indices)
    with make(part, batch_size=4) as loader:
        assert paths_of(loader) == theirs(data, indices, batch_size=4)
        assert loader.dataset is part and len(loader.dataset) == len(indices)
        batch = next(iter(loader))
        wanted = [data[int(index)] for index in list(indices)[:4]]
        assert [(bytes(s), label) for s, label in zip(*batch, strict=True)] == wanted


@pytest.mark.parametrize("drop_last", [False, True])
def test_shuffled_as_torch_shuffles(data: belady.Dataset, drop_last: bool) -> None:
    part: Any = Subset(data, CHOSEN)
    options = {"batch_size": 4, "shuffle": True, "drop_last": drop_last}
    ours = make(part, generator=torch.Generator().manual_seed(5), **options)
    reference: Any = TorchLoader(
        subset_of_paths(data, CHOSEN), generator=torch.Generator().manual_seed(5), **options
    )
    for _ in range(3):
        assert paths_of(ours) == [list(batch) for batch in reference]


def test_shuffled_after_a_manual_seed(data: belady.Dataset) -> None:
    part: Any = Subset(data, CHOSEN)
    torch.manual_seed(3)
    with make(part, batch_size=4, shuffle=True, seed="torch") as loader:
        ours = [paths_of(loader) for _ in range(2)]
    torch.manual_seed(3)
    reference: Any = TorchLoader(subset_of_paths(data, CHOSEN), batch_size=4, shuffle=True)
    assert ours == [[list(batch) for batch in reference] for _ in range(2)]


def test_nested_subsets(data: belady.Dataset) -> None:
    outer: Any = Subset(Subset(Subset(data, range(10, 50)), CHOSEN[1:4]), [2, 0])
    with make(outer, batch_size=1) as loader:
        assert paths_of(loader) == [[data.paths[27]], [data.paths[13]]]


def test_random_split_gives_parts_that_loaders_take(data: belady.Dataset) -> None:
    generator = torch.Generator().manual_seed(1)
    train, held_back = random_split(data, [0.75, 0.25], generator=generator)  # type: ignore[arg-type]
    engine = belady.Engine(cache="ram:1MiB")
    seen = []
    for part, shuffle in ((train, True), (held_back, False)):
        with make(part, batch_size=8, shuffle=shuffle, seed=0, engine=engine) as loader:  # type: ignore[arg-type]
            assert len(loader) == -(-len(part) // 8)
            seen.append({path for batch in paths_of(loader) for path in batch})
    assert [len(part) for part in seen] == [45, 15]
    assert seen[0] | seen[1] == set(data.paths)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_a_subset_as_a_distributed_sampler_does(
    data: belady.Dataset, shuffle: bool, drop_last: bool
) -> None:
    part: Any = Subset(data, CHOSEN)
    for rank in range(3):
        sampler = DistributedSampler(part, 3, rank, shuffle=shuffle, seed=4, drop_last=drop_last)
        reference = theirs(data, CHOSEN, batch_size=2, sampler=sampler)
        with make(part, batch_size=2, sampler=sampler, rank=rank, world_size=3, peers=None) as ours:
            assert paths_of(ours) == reference
        if not drop_last:
            with make(
                part, batch_size=2, shuffle=shuffle, seed=4, rank=rank, world_size=3, peers=None
            ) as ours:
                assert paths_of(ours) == reference


@pytest.mark.parametrize(
    "sampler",
    [
        lambda part: SequentialSampler(part),
        lambda part: RandomSampler(part, generator=torch.Generator().manual_seed(2)),
        lambda part: RandomSampler(
            part, replacement=True, num_samples=9, generator=torch.Generator().manual_seed(2)
        ),
        lambda part: WeightedRandomSampler(
            [1.0] * len(part), 11, generator=torch.Generator().manual_seed(2)
        ),
        lambda part: [3, 1, 2],
    ],
    ids=["sequential", "random", "with replacement", "weighted", "a list"],
)
def test_samplers_are_over_the_subset(data: belady.Dataset, sampler: Any) -> None:
    part: Any = Subset(data, CHOSEN)
    ours = make(part, batch_size=4, sampler=sampler(part))
    reference: Any = TorchLoader(subset_of_paths(data, CHOSEN), batch_size=4, sampler=sampler(part))
    for _ in range(2):
        assert paths_of(ours) == [list(batch) for batch in reference]


def test_a_state_is_of_one_subset(data: belady.Dataset) -> None:
    part: Any = Subset(data, CHOSEN)
    with make(part, batch_size=4, shuffle=True, seed=7) as loader:
        whole = paths_of(loader)
    with make(part, batch_size=4, shuffle=True, seed=7) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    with make(Subset(data, CHOSEN), batch_size=4, shuffle=True, seed=7) as again:  # type: ignore[arg-type]
        again.load_state_dict(state)
        assert paths_of(again) == whole[1:]
    for other in (data, Subset(data, CHOSEN[::-1]), Subset(data, CHOSEN[:-1])):
        with make(other, batch_size=4, shuffle=True, seed=7) as refusing:  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="the state is of another dataset"):
                refusing.load_state_dict(state)


def test_a_subset_is_a_dataset(data: belady.Dataset) -> None:
    part = belady.subset(data, CHOSEN)
    assert len(part) == len(CHOSEN)
    assert part.targets == [data.targets[index] for index in CHOSEN]
    assert part.classes == data.classes
    assert list(part.paths) == [data.paths[index] for index in CHOSEN]
    assert [part[i] for i in range(len(part))] == [data[index] for index in CHOSEN]
    assert part.total_bytes == sum(data.size(index) for index in CHOSEN)
    again = pickle.loads(pickle.dumps(part))
    assert again == part and again[4] == data[59] and again.fingerprint == part.fingerprint
    assert len(belady.join(part, data)) == 73
    assert belady.subset(part, [1, 0])[1] == data[50]


def test_subsets_of_packed_files(record_data: belady.Dataset, tmp_path: Path) -> None:
    chosen = [99, 5, 5, 7, 6, 0]
    part = belady.subset(record_data, chosen)
    with make(part, batch_size=6, cache=[f"{tmp_path}:1MiB"]) as loader:
        for _ in range(2):
            (batch,) = list(loader)
            assert [bytes(sample)[0] for sample in batch.samples] == chosen


def test_a_failing_sample_is_named_by_its_place_in_the_subset(tmp_path: Path) -> None:
    from conftest import make_photos

    data = belady.open(make_photos(tmp_path / "photos", each=3))
    part = belady.subset(data, [8, 4, 0])
    (tmp_path / "photos/dog/001.bin").unlink()
    with make(part, batch_size=3, cache=[]) as loader, pytest.raises(belady.SampleError) as raised:
        list(loader)
    assert raised.value.sample == 1 and raised.value.path.endswith("dog/001.bin")


def test_worker_processes_of_torch_read_a_subset(data: belady.Dataset) -> None:
    part: Any = Subset(data, CHOSEN)
    loader: Any = TorchLoader(part, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert [s for batch in loader for s in batch[0]] == [data[index][0] for index in CHOSEN]


def test_an_empty_subset_is_refused_with_a_sentence(data: belady.Dataset) -> None:
    part: Any = Subset(data, [])
    with pytest.raises(ValueError, match="the dataset has no samples"):
        make(part, batch_size=4)


class Changing(Subset):  # type: ignore[type-arg]
    """May do as it likes."""


@pytest.mark.parametrize("kind", ["of a list", "a subclass"])
def test_a_subset_of_another_dataset_is_refused(data: belady.Dataset, kind: str) -> None:
    part: Any = Subset([1, 2, 3], [0]) if kind == "of a list" else Changing(data, [0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a torch.utils.data.Subset of one"):
        belady.DataLoader(part)


def test_ids_that_are_not_there_are_refused(data: belady.Dataset) -> None:
    with pytest.raises(IndexError, match="sample 60 does not exist: .* has 60"):
        belady.subset(data, [60])
    with pytest.raises(TypeError, match="subset takes a dataset"):
        belady.subset([1, 2], [0])  # type: ignore[arg-type]


#: Two ranks train on one part of a table and look at the other.
TRAIN = (
    PROLOGUE
    + """
import belady, torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, random_split

dist.init_process_group("gloo")
data = belady.open(os.environ["TABLE"])
options = {"batch_size": 4, "seed": 1, "cache": "ram:1MiB", "staging": "200KB"}
with belady.DataLoader(data, shuffle=True, **options) as loader:
    assert len(loader) == 8 and loader.engine.cluster.size == 2
    dist.barrier()
parts = random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
for part, shuffle in zip(parts, (True, False)):
    loader = belady.DataLoader(part, shuffle=shuffle, **options)
    sampler = DistributedSampler(part, shuffle=shuffle, seed=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = []
        for batch in loader:
            assert all(bytes(s) == open(s.path, "rb").read() for s in batch.samples)
            seen += batch.paths
        assert seen == [data.paths[part.indices[sample]] for sample in sampler]
        dist.barrier()
    loader.close()
print("as torch has it")
dist.destroy_process_group()
"""
)


def test_ranks_with_one_cache_share_the_parts_of_a_table(photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.rglob("*.bin"))
    rows = [f"{file},{file.parent.name}" for file in files]
    (tmp_path / "train.csv").write_text("\n".join(["path,label", *rows]))
    output = torchrun(tmp_path, TRAIN, ranks=2, TABLE=str(tmp_path / "train.csv"))
    assert output.count("as torch has it") == 2, output


@pytest.mark.parametrize(
    "made", [lambda data: belady.subset(data, [3, 1]), lambda data: belady.join([data, data])]
)
def test_another_process_lists_derived_datasets_part_by_part(
    data: belady.Dataset, made: Any
) -> None:
    """With peers a pickled subset was listed as if it were a directory: KeyError."""
    again = pickle.loads(pickle.dumps(made(data)))
    assert [part.path for part in again._parts] == [data.path] * len(again._parts)
    assert len(again._parts) > 0 and len(again) == len(made(data))
