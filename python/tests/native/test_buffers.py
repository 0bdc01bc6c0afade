"""Lent memory: whether it can be written, and how long it stays valid."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from belady import _native

from .helpers import Start, batches, contents


def lent(even: _native.Dataset, start: Start) -> list[_native.Sample]:
    """Samples that lie in a RAM tier."""
    samples = [
        sample
        for batch in batches(start(even, batch=10, epochs=10, writable=False))
        for sample in batch.samples()
        if is_cached(sample)
    ]
    assert samples, "nothing was lent from memory"
    return samples


def is_cached(sample: _native.Sample) -> bool:
    try:
        sample.__dlpack__(copy=False)
    except BufferError as error:
        assert "leave out copy=False" in str(error)
        return True
    return False


def test_samples_are_what_the_source_holds(dataset: _native.Dataset, start: Start) -> None:
    for batch in batches(start(dataset, epochs=2)):
        assert len(batch) == len(batch.samples()) == len(batch.ids)
        for at, sample in enumerate(batch.samples()):
            assert bytes(sample) == bytes(memoryview(sample)) == contents(sample.id)
            assert len(sample) == len(contents(sample.id))
            assert sample.id == batch.ids[at] == batch[at].id
            assert sample.path == batch.paths()[at] == dataset.sample_path(sample.id)
            assert sample.label == batch.labels[at] == dataset.label(sample.id)
        assert np.frombuffer(batch.labels_bytes(), np.int64).tolist() == batch.labels
        assert bytes(batch[-1]) == bytes(batch[len(batch) - 1])
        with pytest.raises(IndexError, match=f"the batch has {len(batch)}"):
            batch[len(batch)]
        with pytest.raises(IndexError):
            batch[-len(batch) - 1]


def test_buffers_stay_valid_when_everything_else_is_gone(
    dataset: _native.Dataset, start: Start
) -> None:
    loader = start(dataset, epochs=4, staging=200_000)
    batch = loader.next()
    assert batch is not None
    held = [(sample.id, memoryview(sample), np.from_dlpack(sample)) for sample in batch.samples()]
    del batch
    for later in range(3):
        # Others use the rest of the buffer meanwhile.
        assert loader.next() is not None, later
    loader.close()
    del loader
    gc.collect()
    for sample, view, array in held:
        assert bytes(view) == array.tobytes() == contents(sample)


def test_writing_is_allowed_in_slots_and_reaches_no_cache(
    dataset: _native.Dataset, start: Start
) -> None:
    loader = start(dataset, epochs=3, order="torch", writable=True)
    seen = 0
    while (batch := loader.next()) is not None:
        for sample in batch.samples():
            view = memoryview(sample)
            assert not view.readonly
            assert bytes(view) == contents(sample.id)
            view[:] = b"\xff" * len(view)
            assert bytes(sample) == b"\xff" * len(view)
            seen += 1
    assert seen == 3 * len(dataset)


def test_samples_of_a_lending_loader_cannot_be_written(
    dataset: _native.Dataset, start: Start
) -> None:
    for batch in batches(start(dataset, epochs=3, writable=False)):
        for sample in batch.samples():
            view = memoryview(sample)
            assert view.readonly
            with pytest.raises(TypeError):
                view[0] = 1
            with pytest.raises(ValueError, match="read-only"):
                np.frombuffer(sample, np.uint8)[0] = 1


def test_a_cached_sample_is_exported_as_a_copy(even: _native.Dataset, start: Start) -> None:
    for sample in lent(even, start):
        assert memoryview(sample).readonly
        array = np.from_dlpack(sample)
        array[:] = 0
        assert bytes(sample) == contents(sample.id, 1000), "the cache is as it was"


def test_numpy_takes_slots_without_a_copy(even: _native.Dataset, start: Start) -> None:
    batch = start(even).next()
    assert batch is not None
    array = np.from_dlpack(batch[0])
    memoryview(batch[0])[0] = 77
    assert array[0] == 77
    copy = np.from_dlpack(batch[0], copy=True)
    memoryview(batch[0])[0] = 78
    assert copy[0] == 77 and array[0] == 78
    assert batch[0].__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3)])
def test_both_kinds_of_capsules_are_made_and_dropped(
    even: _native.Dataset, start: Start, version: tuple[int, int] | None
) -> None:
    batch = start(even).next()
    assert batch is not None
    new = version is not None and version >= (1, 0)
    for exported in (batch[0], batch.stacked()):
        assert exported is not None
        capsule: Any = exported.__dlpack__(max_version=version)
        name = "dltensor_versioned" if new else "dltensor"
        assert f'"{name}"' in repr(capsule)
        # Without a consumer, the capsule frees the memory itself.
        del capsule


def test_unused_capsules_release_their_memory(even: _native.Dataset, start: Start) -> None:
    # Two batches fit; if a capsule kept one, the loader would stop.
    loader = start(even, batch=30, epochs=20, staging=80_000)
    count = 0
    while (batch := loader.next(timeout=10)) is not None:
        for sample in batch.samples():
            sample.__dlpack__()
            sample.__dlpack__(max_version=(1, 0))
            np.from_dlpack(sample)
        count += 1
        del sample, batch
    assert count == 40


def test_torch_shares_memory_with_slots(even: _native.Dataset, start: Start) -> None:
    torch = pytest.importorskip("torch")
    batch = start(even).next()
    assert batch is not None
    tensor = torch.from_dlpack(batch[2])
    stacked = torch.from_dlpack(batch.stacked())
    assert tensor.dtype == torch.uint8 and stacked.shape == (8, 1000)
    tensor.mul_(0).add_(9)
    assert stacked[2].unique().tolist() == [9]
    assert bytes(batch[2]) == b"\x09" * 1000
    identity = weakref.ref(tensor)
    del batch
    gc.collect()
    assert stacked[2].sum().item() == 9000 and identity() is not None


def test_other_devices_are_refused(even: _native.Dataset, start: Start) -> None:
    batch = start(even).next()
    assert batch is not None
    with pytest.raises(BufferError, match="host memory"):
        batch[0].__dlpack__(dl_device=(2, 0))


def test_equal_samples_are_one_array(even: _native.Dataset, start: Start) -> None:
    for batch in batches(start(even, batch=7, order="torch", epochs=2)):
        stacked = batch.stacked()
        assert stacked is not None and stacked.shape == (len(batch), 1000)
        array = np.asarray(stacked)
        assert array.shape == stacked.shape and array.dtype == np.uint8
        for row, sample in zip(array, batch.ids, strict=True):
            assert row.tobytes() == contents(sample, 1000)
        assert np.array_equal(array, np.from_dlpack(stacked))
        view = memoryview(stacked)
        assert view.format == "B" and view.itemsize == 1 and not view.readonly
        assert view.tolist() == array.tolist()


def test_samples_of_different_sizes_are_no_array(dataset: _native.Dataset, start: Start) -> None:
    batch = start(dataset).next()
    assert batch is not None and batch.stacked() is None


def test_a_shared_ring_gives_the_places_of_samples(dataset: _native.Dataset, start: Start) -> None:
    import mmap

    loader = start(dataset, shared=True)
    memory = loader.shared_memory()
    assert memory is not None
    with mmap.mmap(memory[0], memory[1], prot=mmap.PROT_READ) as mapped:
        for batch in batches(loader):
            for at, sample in enumerate(batch.samples()):
                place = batch.shared_range(at)
                assert place is not None
                offset, length = place
                assert mapped[offset : offset + length] == contents(sample.id)
    loader.close()
    assert loader.shared_memory() is None
    private = start(dataset)
    batch = private.next()
    assert batch is not None
    assert private.shared_memory() is None and batch.shared_range(0) is None
