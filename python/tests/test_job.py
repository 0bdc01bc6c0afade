"""Jobs as HDMLP has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import belady


def job(photos: Path, **arguments: Any) -> belady.Job:
    given = {"batch_size": 12, "epochs": 2, "seed": 3, "cache": "ram:1MiB", "staging": "2MiB"}
    return belady.Job(photos, **(given | arguments))  # type: ignore[arg-type]


def test_every_sample_comes_once_an_epoch(photos: Path) -> None:
    data = belady.open(photos)
    with job(photos) as running:
        assert running.length() == 60
        assert running.buffer_p is not None and running.buffer_p.readonly
        for _ in range(2):
            got = [running.get() for _ in range(60)]
            expected = [(label, sample) for sample, label in data]
            assert sorted((label, bytes(sample)) for label, sample in got) == sorted(expected)
        with pytest.raises(StopIteration):
            running.get()
    assert running.buffer_p is None


def test_a_job_with_transforms_gives_batches(photos: Path) -> None:
    with job(photos, transforms=[bytes, len]) as running:
        sizes, labels = running.get()
        assert len(sizes) == len(labels) == 12


def test_nodes_share_a_global_batch(photos: Path) -> None:
    nodes = [job(photos, rank=rank, world_size=3) for rank in range(3)]
    seen = []
    for node in nodes:
        node.setup()
    for node in nodes:
        assert (node.get_no_nodes(), node.length()) == (3, 20)
        seen += [bytes(node.get()[1]) for _ in range(20)]
        node.destroy()
    assert sorted(seen) == sorted(sample for sample, _ in belady.open(photos))


def test_wrong_use_is_an_error(photos: Path) -> None:
    with pytest.raises(belady.BeladyError, match=r"call setup\(\) first"):
        job(photos).get()
    with pytest.raises(ValueError, match="12 cannot be divided by 5 nodes"):
        job(photos, rank=0, world_size=5)
    with pytest.raises(ValueError, match="have to agree on a seed"):
        job(photos, rank=0, world_size=2, seed=None)
    with pytest.raises(ValueError, match="did you mean uniform"):
        job(photos, distr_scheme="unifrom")
    with pytest.raises(TypeError, match="list of functions"):
        job(photos, transforms=["resize"])
    running = job(photos)
    running.setup()
    with pytest.raises(belady.BeladyError, match="this job is set up"):
        running.setup()
    running.destroy()
    running.destroy()


def test_a_transform_that_raises_names_the_sample(photos: Path) -> None:
    with job(photos, transforms=[lambda sample: 1 / 0]) as running:
        with pytest.raises(belady.DecodeError, match=r"decode failed on .*\.bin: ZeroDivision"):
            running.get()
