"""Loaders with transforms give the same results in threads, processes and resumed runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import MAY_FORK, make

import belady
from belady import transforms as T

TRAIN = T.Compose(
    [
        T.Decode(),
        T.RandomResizedCrop(24),
        T.RandomHorizontalFlip(),
        T.ColorJitter(0.3),
        T.ToTensor(),
    ]
)
EVAL = [T.Decode(), T.Resize(32), T.CenterCrop(24), T.ToTensor()]


def naive(data: belady.Dataset, batch: Any, *, epoch: int, seed: int = 0) -> torch.Tensor:
    """The batch as one sample after another makes it."""
    return torch.stack(
        [TRAIN(data[id_][0], seed=seed, epoch=epoch, sample=id_) for id_ in batch.ids]
    )


def epochs(loader: belady.DataLoader, count: int) -> list[list[torch.Tensor]]:
    return [[images.clone() for images, _ in loader] for _ in range(count)]


def equal(ours: list[list[torch.Tensor]], theirs: list[list[torch.Tensor]]) -> bool:
    return len(ours) == len(theirs) and all(
        len(one) == len(other) and all(map(torch.equal, one, other))
        for one, other in zip(ours, theirs, strict=True)
    )


def test_a_batch_is_tensors_and_labels(images: belady.Dataset) -> None:
    with make(images, batch_size=5, shuffle=True, seed=3, transform=TRAIN) as loader:
        for epoch in range(2):
            for batch in loader:
                tensors, labels = batch
                assert tensors.dtype == torch.float32 and tensors.shape == (
                    len(batch.ids),
                    3,
                    24,
                    24,
                )
                assert tensors.is_contiguous() and tensors.min() >= 0 and tensors.max() <= 1
                assert labels.dtype == torch.int64
                assert labels.tolist() == [images.targets[id_] for id_ in batch.ids]
                assert batch.paths == [images.paths[id_] for id_ in batch.ids]
                assert batch.epoch == epoch
                assert torch.equal(tensors, naive(images, batch, epoch=epoch, seed=3))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_dtypes_and_layouts(images: belady.Dataset, dtype: str, layout: str) -> None:
    chain = [T.Decode(), T.Resize((10, 12)), T.ToTensor(dtype, layout)]
    with make(images, batch_size=4, transform=chain) as loader:
        tensors, _ = next(iter(loader))
    assert tensors.dtype == getattr(torch, dtype)
    assert tensors.shape == ((4, 3, 10, 12) if layout == "CHW" else (4, 10, 12, 3))


def test_an_image_is_uint8_with_its_channels_last(images: belady.Dataset) -> None:
    with make(images, batch_size=4, transform=[T.Decode("GRAY"), T.Resize((10, 12))]) as loader:
        tensors, _ = next(iter(loader))
    assert tensors.dtype == torch.uint8 and tensors.shape == (4, 10, 12, 1)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_threads_and_processes_draw_the_same_crops(
    images: belady.Dataset, threads: int, workers: int
) -> None:
    with make(images, batch_size=7, shuffle=True, transform=TRAIN, num_threads=3) as loader:
        expected = epochs(loader, 3)
    options: dict[str, Any] = {"num_threads": threads, "num_workers": workers, "cache": []}
    with make(images, batch_size=7, shuffle=True, transform=TRAIN, **options) as loader:
        assert equal(epochs(loader, 3), expected)


def test_seeds_and_epochs_draw_differently(images: belady.Dataset) -> None:
    def first(seed: int) -> list[list[torch.Tensor]]:
        with make(images, batch_size=8, seed=seed, transform=TRAIN) as loader:
            return epochs(loader, 2)

    one, two = first(0), first(1)
    assert not torch.equal(one[0][0], one[1][0]), "epochs"
    assert not torch.equal(one[0][0], two[0][0]), "seeds"
    assert equal(one, first(0))


def test_a_run_that_is_resumed_draws_the_same_crops(images: belady.Dataset) -> None:
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "transform": TRAIN}
    with make(images, **options) as loader:
        whole = [(batch.ids, batch[0].clone()) for _ in range(3) for batch in loader]
        each = len(loader)
    for stop in (1, each - 1, each + 2, 2 * each):
        seen, loader = [], make(images, **options)
        while len(seen) < stop:
            for batch in loader:
                seen.append((batch.ids, batch[0].clone()))
                if len(seen) == stop:
                    saved = loader.state_dict()
                    break
        loader.close()
        with make(images, num_threads=1, **options) as again:
            again.load_state_dict(saved)
            rest = [(batch.ids, batch[0].clone()) for _ in range(4) for batch in again]
        expected = whole[stop:]
        assert [ids for ids, _ in rest[: len(expected)]] == [ids for ids, _ in expected]
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(rest, expected, strict=False)), stop


def test_epochs_that_end_early_or_are_set_draw_their_own_crops(images: belady.Dataset) -> None:
    with make(images, batch_size=5, shuffle=True, transform=TRAIN) as loader:
        for number, _ in enumerate(loader):
            if number == 1:
                break
        for batch in loader:
            assert torch.equal(batch[0], naive(images, batch, epoch=1))
        loader.set_epoch(7)
        for batch in loader:
            assert torch.equal(batch[0], naive(images, batch, epoch=7))
        for _ in range(3):  # leaves two epochs after as many batches, and goes on so
            for number, batch in enumerate(loader):
                assert torch.equal(batch[0], naive(images, batch, epoch=batch.epoch))
                if number == 2:
                    break


def test_ranks_draw_as_one_process_does(images: belady.Dataset) -> None:
    seen: dict[int, torch.Tensor] = {}
    for rank in range(2):
        with make(
            images, batch_size=4, shuffle=True, transform=TRAIN, rank=rank, world_size=2
        ) as loader:
            for batch in loader:
                seen |= dict(zip(batch.ids, batch[0].clone(), strict=True))
    with make(images, batch_size=8, shuffle=True, transform=TRAIN) as loader:
        for batch in loader:
            for id_, tensor in zip(batch.ids, batch[0], strict=True):
                assert torch.equal(seen[id_], tensor)


def test_writing_into_a_batch_reaches_no_cache(images: belady.Dataset) -> None:
    """In-place work on a batch does not change the next epoch."""
    with make(images, batch_size=6, transform=EVAL, cache="ram:4MiB") as loader:
        expected = epochs(loader, 1)[0]
        for _ in range(3):
            for images_, wanted in zip(loader, expected, strict=True):
                assert torch.equal(images_[0], wanted)
                images_[0].mul_(0).add_(7)
    raw = make(images, batch_size=6, cache="ram:4MiB")
    for batch in raw:
        assert [bytes(s) for s in batch.samples] == [images[id_][0] for id_ in batch.ids]
    raw.close()


def test_batches_that_are_kept_stay_as_they_are(images: belady.Dataset) -> None:
    with make(images, batch_size=3, transform=EVAL) as loader:
        kept = [batch[0] for _ in range(2) for batch in loader]
        copies = [tensor.clone() for tensor in kept]
        for _ in range(2):
            for _ in loader:
                pass
    assert all(map(torch.equal, kept, copies))


def test_varying_shapes_come_as_lists(images: belady.Dataset) -> None:
    with make(images, batch_size=6, transform=[T.Decode(), T.ToTensor()]) as loader:
        for batch in loader:
            tensors, labels = batch
            assert isinstance(tensors, list) and len(tensors) == len(labels)
            for id_, tensor in zip(batch.ids, tensors, strict=True):
                assert torch.equal(tensor, T.Compose([T.Decode(), T.ToTensor()])(images[id_][0]))
        assert len({tensor.shape for tensor in tensors}) > 1


@pytest.mark.parametrize("fixed", [True, False])
def test_collate_fn_gets_pairs_of_array_and_label(images: belady.Dataset, fixed: bool) -> None:
    chain = EVAL if fixed else [T.Decode(), T.ToTensor()]

    def padded(samples: list[tuple[torch.Tensor, int]]) -> Any:
        assert all(type(label) is int for _, label in samples)
        height, width = (max(t.shape[axis] for t, _ in samples) for axis in (1, 2))
        whole = torch.zeros(len(samples), 3, height, width)
        for place, (tensor, _) in zip(whole, samples, strict=True):
            place[:, : tensor.shape[1], : tensor.shape[2]] = tensor
        return whole, [label for _, label in samples]

    with make(images, batch_size=6, transform=chain, collate_fn=padded) as loader:
        for batch in loader:
            whole, labels = batch
            assert whole.ndim == 4 and labels == [images.targets[id_] for id_ in batch.ids]
            first = T.Compose(chain)(images[batch.ids[0]][0])
            assert torch.equal(whole[0, :, : first.shape[1], : first.shape[2]], first)


def test_one_step_is_a_chain(images: belady.Dataset) -> None:
    with make(images, batch_size=2, transform=T.Decode()) as loader:
        tensors, _ = next(iter(loader))
    assert [t.dtype for t in tensors] == [torch.uint8] * 2


WITHOUT_TORCH = """
import sys
{imports}
import belady
from belady import transforms as T
loader = belady.DataLoader(belady.open({path!r}), batch_size=4, cache="ram:1MiB",
                           transform=[T.Decode(), T.Resize((8, 9)), T.ToTensor({dtype!r})])
for _ in range(2):
    for images, labels in loader:
        pass
print(type(images).__module__, type(images).__name__, images.shape, images.dtype, type(labels).__name__)
assert "torch" not in sys.modules
loader.close()
"""


@pytest.mark.parametrize(
    ("imports", "dtype", "printed"),
    [
        ("", "float32", "belady._native Array (4, 3, 8, 9) float32 list"),
        ("import numpy", "float32", "numpy ndarray (4, 3, 8, 9) float32 ndarray"),
        ("import numpy", "bfloat16", "belady._native Array (4, 3, 8, 9) bfloat16 ndarray"),
        ("import numpy, ml_dtypes", "bfloat16", "numpy ndarray (4, 3, 8, 9) bfloat16 ndarray"),
    ],
)
def test_the_imported_library_decides_the_type_of_arrays(
    jpegs: Path, imports: str, dtype: str, printed: str
) -> None:
    code = WITHOUT_TORCH.format(path=str(jpegs), imports=imports, dtype=dtype)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == printed, done.stdout + done.stderr


def test_collate_fn_gets_rows_where_no_library_is_imported(jpegs: Path) -> None:
    code = f"""
import sys, belady
from belady import transforms as T
chain = [T.Decode(), T.CenterCrop((8, 9)), T.ToTensor("uint8")]
data = belady.open({str(jpegs)!r})
with belady.DataLoader(data, batch_size=4, cache="ram:1MiB", transform=chain, collate_fn=list) as loader:
    rows = [row for batch in loader for row, label in batch]
assert "numpy" not in sys.modules and {{row.shape for row in rows}} == {{(3, 8, 9)}}
assert bytes(rows[1]) == bytes(T.Compose(chain)(data[1][0]))
print(len(rows))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "24", done.stdout + done.stderr


def test_jax_takes_any_array(images: belady.Dataset) -> None:
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    array = T.Compose(EVAL)(images[0][0])
    assert np.array_equal(np.asarray(jnp.asarray(array.numpy())), array.numpy())


def test_the_chain_is_checked_when_the_loader_is_made(images: belady.Dataset) -> None:
    with pytest.raises(ValueError, match=r"step 2 \(Normalize\)"):
        make(images, transform=[T.Decode(), T.Normalize((0.5,) * 3, (0.5,) * 3)])
    with pytest.raises(ValueError, match=r"step 1 \(Resize\)"):
        make(images, transform=[T.Resize(8)])
    with pytest.raises(ValueError, match=r"step 3 \(Normalize\)"):
        make(
            images, transform=[T.Decode("GRAY"), T.ToTensor(), T.Normalize((0.5,) * 3, (0.5,) * 3)]
        )
    with pytest.raises(ValueError, match=r'transform, "image": step 2 \(Decode\)'):
        make(images, transform={"image": [T.Decode(), T.Decode()]})


def test_stats_include_transforms(images: belady.Dataset) -> None:
    with make(images, batch_size=8, transform=EVAL) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    assert stats["samples"] == len(images)
    figures = {name: value for name, value in stats.flat().items() if "transform" in name}
    assert any(value >= len(images) for value in figures.values()), figures
    assert "transform" in str(stats)


def test_a_batch_that_is_late_is_a_timeout_error(jpegs: Path) -> None:
    data = belady.open(jpegs, throttle="1:20KB/s")
    with make(data, batch_size=4, transform=EVAL, timeout=0.05) as loader:
        iterator = iter(loader)
        with pytest.raises(TimeoutError, match=r"no batch came within 0\.05 s; waiting for"):
            for _ in range(2):
                next(iterator)


def test_ctrl_c_while_waiting_loses_no_batch(jpegs: Path) -> None:
    data = belady.open(jpegs, throttle="1:15KB/s")
    with make(data, batch_size=8, transform=EVAL) as loader:
        iterator = iter(loader)
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert next(iterator).ids == list(range(8))


FORKED = """
import os
import belady
from belady import transforms as T
loader = belady.DataLoader(belady.open({path!r}), batch_size=4, cache="ram:1MiB",
                           transform=[T.Decode(), T.Resize((8, 8)), T.ToTensor()])
iterator = iter(loader)
first, _ = next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except belady.BeladyError as error:
        print(error, flush=True)
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert sum(1 for _ in iterator) == len(loader) - 1
loader.close()
"""


def test_a_forked_child_gets_an_error_and_the_parent_continues(jpegs: Path) -> None:
    command = [sys.executable, *MAY_FORK, "-c", FORKED.format(path=str(jpegs))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "made in another process" in done.stdout, (
        done.stdout + done.stderr
    )
    assert done.stderr == ""


def test_closing_at_any_moment(images: belady.Dataset) -> None:
    for taken in range(4):
        loader = make(images, batch_size=4, transform=EVAL)
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        loader.close()
        assert threading.active_count() < 50
        assert sum(1 for _ in loader) == len(loader), "iterating again starts a new pipeline"
        loader.close()


def test_records_of_numbers(record_data: belady.Dataset) -> None:
    chain = [T.Raw("uint8", (4, 16)), T.ToDtype("float32"), T.ScaleShift(2, 1)]
    with make(record_data, batch_size=10, transform=chain) as loader:
        for batch in loader:
            numbers, _ = batch
            assert numbers.shape == (10, 4, 16)
            assert numbers[:, 0, 0].tolist() == [2 * id_ + 1 for id_ in batch.ids]
