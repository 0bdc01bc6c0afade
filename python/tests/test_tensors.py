"""Tensors of torch and JAX; what is written to them never reaches a cache."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from support import make

import belady
import belady.torch


def expected(index: int) -> list[int]:
    return [index] * 64


def test_writing_to_every_batch_leaves_the_next_epoch_as_it_was(
    record_data: belady.Dataset,
) -> None:
    loader = make(
        record_data,
        batch_size=16,
        shuffle=True,
        cache="ram:1MiB",
        collate_fn=belady.torch.stack,
    )
    for _ in range(4):
        for batch in loader:
            images, labels = batch
            assert images.dtype == torch.uint8 and images.shape[1] == 64
            assert [int(image[0]) for image in images] == batch.ids
            assert bool((images == images[:, :1]).all())
            images.fill_(255)
            labels.zero_()


@pytest.mark.parametrize("writable", [None, True, False])
def test_writing_to_tensors_of_samples(data: belady.Dataset, writable: bool | None) -> None:
    files = [sample for sample, _ in data]
    loader = make(
        data, batch_size=9, shuffle=True, cache="ram:1MiB", writable=writable,
        collate_fn=belady.torch.tensors,
    )  # fmt: skip
    for _ in range(3):
        for batch in loader:
            for id_, tensor in zip(batch.ids, batch.samples, strict=True):
                assert bytes(tensor.numpy()) == files[id_]
                tensor.add_(1)


def test_writing_to_buffers(data: belady.Dataset) -> None:
    files = [sample for sample, _ in data]
    loader = make(data, batch_size=9, shuffle=True, cache="ram:1MiB", writable=True)
    for _ in range(3):
        for batch in loader:
            for id_, sample in zip(batch.ids, batch.samples, strict=True):
                array = np.frombuffer(sample, np.uint8)
                assert array.tobytes() == files[id_]
                if array.flags.writeable:
                    array[:] = 0


def test_lent_memory_is_read_only(data: belady.Dataset) -> None:
    loader = make(data, batch_size=9, cache="ram:1MiB", writable=False)
    for _ in range(3):
        for batch in loader:
            for sample in batch.samples:
                assert memoryview(sample).readonly


def test_writable_by_default_where_a_framework_is_imported(
    data: belady.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make(data)._options.writable
    for name in ("torch", "jax", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert not make(data)._options.writable
    assert make(data, decode=lambda sample, label: 0)._options.writable
    lending, knowing = make(data, batch_size=20), make(data, batch_size=20, writable=False)
    for loader in (lending, knowing):
        next(iterator := iter(loader))
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert [batch.ids for batch in iterator] == [list(range(20, 40)), list(range(40, 60))]
        monkeypatch.delitem(sys.modules, "torch")
    assert lending._reader._options.writable and not knowing._reader._options.writable


def test_tensors_outlive_the_loader(record_data: belady.Dataset) -> None:
    loader = make(record_data, batch_size=50, collate_fn=belady.torch.stack)
    kept = [batch for batch in loader]
    loader.close()
    del loader
    for batch in kept:
        assert [row.tolist() for row in batch.samples] == [expected(id_) for id_ in batch.ids]


def test_a_stack_of_other_types_and_shapes(record_data: belady.Dataset) -> None:
    collate = belady.torch.Stack(torch.int16, (4, 8))
    for batch in make(record_data, batch_size=25, collate_fn=collate):
        assert batch.samples.shape == (25, 4, 8) and batch.samples.dtype == torch.int16
        assert batch.samples[:, 0, 0].tolist() == [id_ * 257 for id_ in batch.ids]


def test_samples_of_different_sizes_are_no_stack(data: belady.Dataset) -> None:
    with pytest.raises(ValueError, match=r"equally long, but .* use belady\.torch\.tensors"):
        next(iter(make(data, batch_size=5, collate_fn=belady.torch.stack)))
    with pytest.raises(ValueError, match="leave decode out"):
        make(data, decode=len, collate_fn=belady.torch.stack)


def test_moving_a_batch_moves_all_its_tensors(record_data: belady.Dataset) -> None:
    batch = next(iter(make(record_data, batch_size=5, collate_fn=belady.torch.stack)))
    moved = batch.to(torch.float32)
    assert moved.samples.dtype == torch.float32
    assert moved.ids == batch.ids and moved.paths == batch.paths
    assert type(batch)([1, 2]) == (1, 2)
    with pytest.raises(AttributeError, match="has no ids and paths"):
        _ = type(batch)([1, 2]).ids


def test_pinning_without_an_accelerator_warns_as_torch_does(record_data: belady.Dataset) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator here; its tests run where one is expected")
    loader = make(record_data, batch_size=5, collate_fn=belady.torch.stack, pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator"):
        next(iter(loader))


def test_jax_arrays(record_data: belady.Dataset, data: belady.Dataset) -> None:
    jax: Any = pytest.importorskip("jax", reason="JAX is not installed")
    import belady.jax

    for _ in range(2):
        for batch in make(record_data, batch_size=20, shuffle=True, collate_fn=belady.jax.stack):
            assert isinstance(batch.samples, jax.Array) and batch.samples.shape == (20, 64)
            assert batch.samples[:, 5].tolist() == batch.ids
    wide = belady.jax.Stack("int32", (4, 4))
    first = next(iter(make(record_data, batch_size=2, collate_fn=wide)))
    assert first.samples.shape == (2, 4, 4)
    assert first.samples[1, 0, 0] == 0x01010101
    for batch in make(data, batch_size=20, collate_fn=belady.jax.arrays):
        assert [len(array) for array in batch.samples] == [data.size(id_) for id_ in batch.ids]


def test_tensorflow_strings(data: belady.Dataset) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    import belady.tensorflow

    loader = make(data, batch_size=20, shuffle=True, collate_fn=belady.tensorflow.strings)
    seen = []
    for strings, labels in belady.tensorflow.dataset(loader):
        seen += [bytes(text) for text in strings.numpy()]
        assert labels.dtype.name == "int64"
    assert sorted(seen) == sorted(sample for sample, _ in data)


def test_the_guides_names_need_no_import_of_their_own() -> None:
    """`belady.torch.stack`, as the guide has it, was an AttributeError."""
    code = """
import sys
import belady
assert not {"torch", "jax", "tensorflow", "numpy"} & set(sys.modules)
assert belady.torch.stack is not None and "torch" in sys.modules
assert not hasattr(belady, "toch")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
