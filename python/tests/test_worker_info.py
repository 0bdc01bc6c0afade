"""`torch.utils.data.get_worker_info()` in worker processes, which factories of loaders look at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import make
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, Subset, get_worker_info

import belady


def init(number: int) -> None:
    """As timm and Lightning do: seeds by `get_worker_info()`."""
    info = get_worker_info()
    assert info is not None and info.id == number
    assert torch.initial_seed() == info.seed


def decode(sample: Any, label: int) -> tuple[int, int, int, int]:
    info = get_worker_info()
    assert info is not None
    return info.id, info.num_workers, len(info.dataset), label


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("dataset", ["by name", "by place"])
def test_get_worker_info_names_the_worker(data: belady.Dataset, context: str, dataset: str) -> None:
    arguments: dict[str, Any] = {
        "batch_size": 5,
        "num_workers": 2,
        "worker_init_fn": init,
        "decode": decode,
        "multiprocessing_context": context,
    }
    if dataset == "by name":
        loader = belady.DataLoader(dataset=data, cache="ram:100KB", **arguments)
    else:
        loader = make(data, **arguments)
    with loader:
        batches = list(loader)
    assert {int(id_) for ids, *_ in batches for id_ in ids} == {0, 1}
    assert all(int(n) == 2 for _, workers, *_ in batches for n in workers)
    assert all(int(n) == 60 for _, _, lengths, _ in batches for n in lengths)


def test_the_program_itself_is_no_worker(data: belady.Dataset) -> None:
    with make(data, batch_size=5, num_workers=1, decode=decode) as loader:
        next(iter(loader))
        assert get_worker_info() is None


def indices(sample: Any, label: int) -> int:
    info = get_worker_info()
    assert info is not None
    return len(info.dataset.indices)


def test_a_worker_sees_the_subset_that_was_given(data: belady.Dataset) -> None:
    with make(Subset(data, range(10)), batch_size=5, num_workers=1, decode=indices) as loader:  # type: ignore[arg-type]
        assert {int(n) for batch in loader for n in batch.samples} == {10}


def drawn(sample: Any, label: int) -> float:
    return float(torch.rand(()))


def test_no_worker_draws_what_another_drew_in_the_epoch_before(data: belady.Dataset) -> None:
    """Worker n of one epoch drew what worker n + 1 had drawn in the epoch before."""
    with make(
        data, batch_size=5, num_workers=2, decode=drawn, sampler=RandomSampler(range(60))
    ) as loader:
        values = [float(x) for _ in range(3) for batch in loader for x in batch.samples]
    assert len(set(values)) == len(values) == 180


def test_a_batch_sampler_leaves_the_batch_size_open_as_with_torch(data: belady.Dataset) -> None:
    sampler = BatchSampler(SequentialSampler(range(60)), 4, drop_last=False)
    assert make(data, batch_sampler=sampler).batch_size is None
