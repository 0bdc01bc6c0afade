"""Every argument has a sentence for its wrong values, raised when the object is made."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ids, make

import belady
from belady._configuration import arguments, memory


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("40GiB", 40 << 30),
        ("500 GB", 500 * 10**9),
        ("1.5MiB", 3 << 19),
        ("64kb", 64_000),
        ("12", 12),
        ("7 B", 7),
        (4096, 4096),
    ],
)
def test_sizes_are_read_as_people_write_them(text: object, bytes_: int) -> None:
    assert arguments.size(text, "staging") == bytes_


@pytest.mark.parametrize("text", ["40 GB of ram", "lots", "", "-5GiB", "4 GG", "1e9", "GiB"])
def test_an_error_names_text_that_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size.*for example 40GiB"):
        arguments.size(text, "staging")


def test_quotas_are_divided_among_the_ranks_of_a_node(tmp_path: Path) -> None:
    given = ["ram:40MiB", f"{tmp_path}:500MiB"]
    assert arguments.tiers(given, local_ranks=4) == [(None, 10 << 20), (str(tmp_path), 125 << 20)]


def test_caches_may_be_one_text_or_pairs(tmp_path: Path) -> None:
    assert arguments.tiers("ram:1MiB") == [(None, 1 << 20)]
    assert arguments.tiers(("ram", "1MiB")) == [(None, 1 << 20)]
    assert arguments.tiers([(tmp_path, 5000)]) == [(str(tmp_path), 5000)]
    assert arguments.tiers([]) == []


def test_the_default_cache_is_a_quarter_of_free_memory_or_the_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 80 << 30)
    assert arguments.default_tiers(1 << 40, 2) == [(None, 10 << 30)]
    assert arguments.default_tiers(5 << 20, 2) == [(None, 5 << 20)]
    assert arguments.default_tiers(0, 1) == []


def test_ram_beyond_the_control_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "limit", lambda: 8 << 30)
    with pytest.raises(ValueError, match=r"42\.95 GB of RAM, but .* may use 8\.59 GB"):
        arguments.tiers("ram:40GiB")
    assert arguments.tiers("ram:8GiB")


WRONG: list[tuple[str, object, type[Exception], str]] = [
    ("batch_size", 0, ValueError, "batch_size has to be at least 1"),
    ("batch_size", -4, ValueError, "at least 1, not -4"),
    ("batch_size", "64", TypeError, "whole number, not '64'"),
    ("batch_size", True, TypeError, "whole number"),
    ("batch_size", None, ValueError, "batch_size=None .* use batch_size=1"),
    ("shuffle", "tourch", ValueError, "did you mean torch"),
    ("shuffle", 1, TypeError, "shuffle has to be True or False"),
    ("sampler", 5, TypeError, "sampler has to be iterable, not int"),
    ("batch_sampler", 5, TypeError, "batch_sampler has to be iterable"),
    ("num_workers", -1, ValueError, "num_workers has to be at least 0"),
    ("num_workers", 1.5, TypeError, "num_workers has to be a whole number"),
    ("collate_fn", "stack", TypeError, "collate_fn has to be a function .* list of samples"),
    ("pin_memory", "yes", TypeError, "pin_memory has to be True or False"),
    ("drop_last", 3, TypeError, "drop_last has to be True or False"),
    ("timeout", -1, ValueError, "timeout has to be zero or more seconds"),
    ("timeout", "5s", TypeError, "timeout has to be a number of seconds"),
    ("timeout", float("nan"), ValueError, "timeout has to be"),
    ("worker_init_fn", 1, TypeError, "worker_init_fn has to be a function"),
    ("multiprocessing_context", "frok", ValueError, "did you mean fork"),
    ("multiprocessing_context", 3, TypeError, "fork, spawn, forkserver or a context"),
    ("generator", 42, TypeError, "generator has to be a torch.Generator, not int.* use seed"),
    ("prefetch_factor", -2, ValueError, "prefetch_factor has to be at least 0"),
    ("persistent_workers", "no", TypeError, "persistent_workers has to be True or False"),
    ("pin_memory_device", 0, TypeError, "pin_memory_device has to be text"),
    ("in_order", 0, TypeError, "in_order has to be True or False"),
    ("seed", -1, ValueError, "seed has to be at least 0"),
    ("seed", 2**64, ValueError, "at most 18446744073709551615"),
    ("seed", "zero", TypeError, "seed has to be a whole number"),
    ("epochs", 0, ValueError, "epochs has to be at least 1"),
    ("epochs", 2.5, TypeError, "epochs has to be a whole number"),
    ("epochs", 2**40, ValueError, "epochs has to be at most"),
    ("batch_size", 2**70, ValueError, "batch_size has to be at most"),
    ("cache", "ram:99999999PiB", ValueError, r"cache\[0\] has to be at most"),
    ("staging", 2**70, ValueError, "staging has to be at most"),
    ("max_failures", 3, ValueError, 'on_error="skip" and "replace"'),
    ("cache", "40 GB of ram", ValueError, "has no quota; write ram:SIZE or DIRECTORY:SIZE"),
    ("cache", "ram:40 GB of ram", ValueError, "is not a size"),
    ("cache", "/local/nvme", ValueError, "has no quota"),
    ("cache", ["ram:1MiB", "ram:2MiB"], ValueError, "names ram twice"),
    ("cache", 40, TypeError, "cache has to be a list such as"),
    ("cache", [40], TypeError, r"cache\[0\] has to be text such as"),
    ("cache", "ram:0", ValueError, "quota of zero"),
    ("engine", "auto", TypeError, "engine has to be a belady.Engine, not str"),
    ("decode", "jpeg", TypeError, "decode has to be a function .* bytes and its label"),
    ("num_threads", "many", ValueError, 'has to be "auto" or a number'),
    ("num_threads", 0, ValueError, "num_threads has to be at least 1"),
    ("rank", 0, ValueError, "rank is given without world_size"),
    ("world_size", 2, ValueError, "world_size is given without rank"),
    ("scheme", "unifrom", ValueError, "did you mean uniform"),
    ("staging", "big", ValueError, "staging: .* is not a size"),
    ("staging", 0, ValueError, "has to hold two batches"),
    ("metrics", "127.0.0.1:99999", ValueError, "metrics has to be an address"),
    ("metrics", "127.0.0.1:http", ValueError, "metrics has to be an address"),
    ("trace", "/no/such/folder/trace", ValueError, "cannot be written"),
    ("cache", "ram:900TiB", ValueError, "this machine has|control group may"),
    ("policy", "beladi", ValueError, "policy: .*`beladi`: did you mean `belady`"),
    ("policy", "perfect", ValueError, "`perfect` exists in the simulator only"),
    ("policy", "belady,tau=5ms", ValueError, "`tau` is not an option of `belady`.*no options"),
    ("policy", "lobster,taw=5ms", ValueError, "`taw` .*which has threads, eviction, tau"),
    ("policy", "lobster,tau=soon", ValueError, "`tau` of `lobster` is `soon`.*5ms"),
    ("policy", 3, TypeError, 'policy has to be text such as "belady" or a belady.Policy'),
    ("on_error", "ignore", ValueError, "raise, skip or replace"),
    ("max_failures", -1, ValueError, "max_failures has to be at least 0"),
    ("retries", -1, ValueError, "retries has to be at least 0"),
    ("read_timeout", 0, ValueError, "read_timeout has to be more than zero seconds"),
    ("metrics", 9464, ValueError, "metrics has to be an address such as"),
    ("cache_share", 0, ValueError, "more than 0 and at most 1"),
    ("cache_share", "half", TypeError, "cache_share has to be a number"),
    ("writable", "maybe", TypeError, "writable has to be True or False"),
    ("stall_after", 0, ValueError, "stall_after has to be more than zero"),
    ("trace", 7, TypeError, "trace has to be a path"),
    ("batchsize", 4, TypeError, "no argument batchsize, did you mean batch_size"),
    ("shufle", True, TypeError, "did you mean shuffle"),
    ("zzz", True, TypeError, "DataLoader has no argument zzz$"),
]


@pytest.mark.parametrize(("name", "value", "error", "sentence"), WRONG)
def test_a_wrong_value_raises_when_the_loader_is_made(
    data: belady.Dataset, name: str, value: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        belady.DataLoader(data, **{name: value})


def test_a_policy_shows_what_is_not_as_by_default() -> None:
    policy = belady.Policy("lobster", tau=0.005, eviction=False, threads=True)
    assert str(policy) == "lobster,eviction=false,tau=0.005s"
    assert repr(policy) == "Policy('lobster,eviction=false,tau=0.005s')"
    assert policy == belady.Policy("lobster,tau=5ms", eviction=False)
    assert policy == pickle.loads(pickle.dumps(policy))
    assert len({policy, belady.Policy("lobster"), belady.Policy("lobster", tau="1 ms")}) == 2


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"tau": "soon"}, ValueError, "`tau` of `lobster` is `soon`; it must be a duration"),
        ({"threads": 2}, ValueError, "`threads` of `lobster` is `2`; it must be true or false"),
        ({"tua": 1}, ValueError, "`tua` is not an option of `lobster`, which has threads"),
        ({"tau": [1]}, TypeError, r"option tau of a policy has to be .*, not \[1\] \(list\)"),
    ],
)
def test_a_wrong_option_raises_when_the_policy_is_made(
    options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        belady.Policy("lobster", **options)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"sampler": [1], "shuffle": True}, "sampler decides the order"),
        ({"batch_sampler": [[1]], "batch_size": 4}, "batch_sampler makes the batches"),
        ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler makes the batches"),
        ({"rank": 2, "world_size": 2}, "rank 2 is not below world_size 2"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    data: belady.Dataset, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        belady.DataLoader(data, **given)


def test_arguments_of_the_engine_are_refused_beside_one(data: belady.Dataset) -> None:
    engine = belady.Engine(cache=[])
    with pytest.raises(ValueError, match="cache belongs to the engine"):
        belady.DataLoader(data, engine=engine, cache="ram:1MiB")


def test_a_path_instead_of_a_dataset_is_an_error_that_shows_open() -> None:
    with pytest.raises(TypeError, match=r'belady\.open\("/data"\)'):
        belady.DataLoader("/data")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not list.*torch's own DataLoader"):
        belady.DataLoader([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"path": 5}, TypeError, "path has to be a path, not 5"),
        ({"path": ""}, ValueError, "path is empty"),
        ({"path": "/d", "format": "foldr"}, ValueError, "did you mean folder"),
        ({"path": "/d", "format": "records"}, ValueError, "needs the size of a record"),
        ({"path": "/d", "format": 7}, TypeError, "format has to be one of"),
        ({"path": "/d", "snapshots": 7}, TypeError, "snapshots has to be a path"),
    ],
)
def test_opening_refuses_wrong_values(
    given: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        belady.open(**given)


def test_an_error_names_a_missing_dataset(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError, belady.BeladyError), match="nothing-here"):
        belady.open(tmp_path / "nothing-here")


def test_engine_refuses_wrong_values() -> None:
    with pytest.raises(TypeError, match="Engine has no argument cahce, did you mean cache"):
        belady.Engine(cahce="ram:1MiB")
    with pytest.raises(ValueError, match="threads has to be at least 1"):
        belady.Engine(threads=0)
    with pytest.raises(TypeError, match="cannot be pickled"):
        belady.Engine(cache=[]).__reduce__()


def test_weights_are_checked(data: belady.Dataset) -> None:
    with pytest.raises(ValueError, match=r"weights\[1\] has to be zero or more, not -1"):
        belady.Weighted([1, -1])
    with pytest.raises(TypeError, match=r"weights\[0\] has to be a number"):
        belady.Weighted(["much"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="at least one number above zero"):
        belady.Weighted([0, 0])
    with pytest.raises(ValueError, match="only the 1 samples"):
        belady.Weighted([1, 0], num_samples=2, replacement=False)
    with pytest.raises(ValueError, match="2 weights for 60 samples"):
        belady.DataLoader(data, sampler=belady.Weighted([1, 1]))
    with pytest.raises(ValueError, match="3 weights for 1 datasets"):
        belady.Mixture([data], weights=[1, 2, 3])


def test_pinning_needs_torch(data: belady.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(ValueError, match="import torch first"):
        belady.DataLoader(data, pin_memory=True)


def test_the_system_file_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BELADY_SYSTEM", str(tmp_path / "missing.toml"))
    with pytest.raises(ValueError, match=r"missing\.toml"):
        belady.Engine(cache=[])


@pytest.mark.parametrize("sampler", [[1, 2], belady.Weighted([1.0] * 60)], ids=["list", "weighted"])
def test_a_scheme_that_a_sampler_overrides_is_refused(data: belady.Dataset, sampler: Any) -> None:
    with pytest.raises(ValueError, match='scheme="whole" is for orders that the loader makes'):
        make(data, sampler=sampler, scheme="whole")


@pytest.mark.parametrize("name", ["stall_after", "timeout", "read_timeout"])
@pytest.mark.parametrize("decode", [None, lambda sample, label: len(sample)])
def test_infinity_is_a_valid_time(data: belady.Dataset, name: str, decode: Any) -> None:
    """An infinite stall_after failed at the first batch."""
    loader = make(data, batch_size=30, decode=decode, **{name: float("inf")})
    assert len(ids(loader)) == 2


def test_an_empty_path_of_bytes_is_not_the_current_directory() -> None:
    with pytest.raises(ValueError, match="path is empty"):
        belady.open(b"")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "error", "sentence"),
    [
        ("snapshot", False, TypeError, "open has no argument snapshot, did you mean snapshots"),
        ("throttle", 5, TypeError, "throttle has to be text such as"),
        ("progress", "bar", TypeError, "progress has to be True or False"),
    ],
)
def test_a_wrong_value_raises_when_a_dataset_is_opened(
    photos: Path, name: str, value: object, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        belady.folder(photos, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "error", "sentence"),
    [
        ("sed", 3, TypeError, "Job has no argument sed, did you mean seed"),
        ("cache", "40 GB of ram", ValueError, "has no quota"),
        ("config_path", 3, TypeError, "config_path has to be a path"),
        ("seed", 2**64, ValueError, "seed has to be at most"),
    ],
)
def test_a_wrong_value_raises_when_a_job_is_made(
    photos: Path, name: str, value: object, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        belady.Job(photos, **({"batch_size": 4, "epochs": 1} | {name: value}))
