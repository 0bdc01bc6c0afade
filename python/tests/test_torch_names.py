"""The loader has torch's arguments and attributes, and the documentation describes each of
it.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data
from torch.utils.data import TensorDataset

import belady

GUIDE = Path(__file__).parents[2] / "docs/python.md"
#: What each argument may be, beside torch's default.
VALUES: dict[str, list[Any]] = {
    "dataset": [],
    "batch_size": [1, 7],
    "shuffle": [None, True],
    "sampler": [[3, 1, 2]],
    "batch_sampler": [[[3, 1], [2]]],
    "num_workers": [2],
    "collate_fn": [list],
    "pin_memory": [True],
    "drop_last": [True],
    "timeout": [30],
    "worker_init_fn": [print],
    "multiprocessing_context": ["fork", "spawn"],
    "generator": [torch.Generator().manual_seed(4)],
    "prefetch_factor": [3],
    "persistent_workers": [True],
    "pin_memory_device": ["cuda"],
    "in_order": [False],
}


def table(heading: str) -> dict[str, str]:
    """What the guide says of each name in a table."""
    found = re.search(
        rf"^\| {heading} \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", GUIDE.read_text(), re.MULTILINE
    )
    assert found, f"the guide has no table of torch's {heading}s"
    rows = [line.strip("|").split(" | ", 1) for line in found[1].splitlines()]
    return {name: here.strip() for names, here in rows for name in re.findall(r"`(\w+)`", names)}


def parameters(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind).parameters if name != "self"]


def test_the_guide_names_every_argument_of_torchs_loader_and_no_other() -> None:
    arguments = parameters(torch.utils.data.DataLoader)
    assert list(table("argument")) == arguments
    assert list(VALUES) == arguments


def test_arguments_stand_where_torch_has_them() -> None:
    torchs = inspect.signature(torch.utils.data.DataLoader).parameters
    ours = inspect.signature(belady.DataLoader).parameters
    by_place = [name for name, it in torchs.items() if it.kind is it.POSITIONAL_OR_KEYWORD]
    assert [name for name, it in ours.items() if it.kind is it.POSITIONAL_OR_KEYWORD] == by_place


@pytest.mark.parametrize("name", [name for name in VALUES if name != "dataset"])
def test_every_argument_is_accepted(data: belady.Dataset, name: str) -> None:
    default = inspect.signature(torch.utils.data.DataLoader).parameters[name].default
    for value in [default, *VALUES[name]]:
        with belady.DataLoader(dataset=data, cache=[], **{name: value}) as loader:
            assert len(loader) > 0


def attributes() -> list[str]:
    shown = dir(torch.utils.data.DataLoader(TensorDataset(torch.zeros(3))))
    return [name for name in shown if not name.startswith("_")]


def test_the_guide_names_every_attribute_of_torchs_loader_and_no_other() -> None:
    assert sorted(table("attribute")) == sorted(attributes())


@pytest.mark.parametrize("name", attributes())
def test_every_attribute_is_there_unless_the_guide_says_that_it_is_not(
    data: belady.Dataset, name: str
) -> None:
    loader = belady.DataLoader(data, cache=[])
    assert hasattr(loader, name) == (table("attribute")[name] != "not there")


def test_attributes_are_as_given(data: belady.Dataset) -> None:
    """timm, Accelerate and others read them."""
    for name in (
        "num_workers",
        "drop_last",
        "timeout",
        "worker_init_fn",
        "persistent_workers",
        "in_order",
    ):
        for value in VALUES[name]:
            assert getattr(belady.DataLoader(data, cache=[], **{name: value}), name) == value
    loader = belady.DataLoader(data, cache=[], num_workers=2, prefetch_factor=5)
    assert (loader.prefetch_factor, loader.dataset) == (5, data)
    assert belady.DataLoader(data, cache=[]).prefetch_factor is None
