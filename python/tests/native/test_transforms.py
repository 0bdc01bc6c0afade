"""Chains, arrays and transformers of the native module."""

import gc
import json
import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from belady import _native
from belady.errors import DecodeError

from .helpers import Start, contents, write_dataset

ALL_DTYPES = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
ALL_DTYPES += ["float16", "float32", "float64"]


def chain(*steps: dict[str, Any]) -> _native.Chain:
    return _native.Chain(json.dumps(steps))


def raw(dtype: str = "uint8", shape: list[int | None] | None = None) -> _native.Chain:
    return chain({"op": "Raw", "dtype": dtype, "shape": [None] if shape is None else shape})


def all_of(transformer: _native.Transformer) -> list[_native.OutputBatch]:
    found = []
    while (made := transformer.next(timeout=60)) is not None:
        found.append(made)
    return found


def as_numpy(array: object) -> np.ndarray:
    assert isinstance(array, _native.Array)
    return np.asarray(memoryview(array))


# Chains


def test_a_wrong_chain_is_an_error_of_one_sentence() -> None:
    with pytest.raises(ValueError, match="(?i)normalize"):
        chain({"op": "Normalize", "mean": [0.5], "std": [0.5]})
    with pytest.raises(ValueError, match="Resise.*Resize"):
        chain({"op": "Resise"})
    with pytest.raises(ValueError, match="JSON"):
        _native.Chain("nonsense")


def test_a_chain_knows_dtype_and_shape_of_its_result() -> None:
    assert raw("float32", [2, 3]).output == ("float32", (2, 3))
    assert raw("int16").output == ("int16", None)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_arrays_are_what_numpy_makes_of_the_bytes(dtype: str) -> None:
    data = contents(3, 48)
    array = raw(dtype, [2, None]).run(data, 0, 0, 0)
    wanted = np.frombuffer(data, dtype).reshape(2, -1)
    assert array.dtype == dtype and array.shape == wanted.shape and array.nbytes == 48
    assert len(array) == 2
    for seen in (np.asarray(memoryview(array)), np.from_dlpack(array)):
        assert seen.dtype == wanted.dtype and seen.shape == wanted.shape
        assert seen.tobytes() == data


def test_bfloat16_is_itself_to_torch_and_uint16_to_buffers() -> None:
    torch = pytest.importorskip("torch")
    array = raw("bfloat16", [3]).run(
        np.array([1, 2, 3], "<f4").view("<u2")[1::2].tobytes(), 0, 0, 0
    )
    tensor = torch.from_dlpack(array)
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [1, 2, 3]
    assert memoryview(array).format == "H"


def test_arrays_are_writable_and_shared_unless_copied() -> None:
    array = raw("uint8", [2, 4]).run(contents(1, 8), 0, 0, 0)
    first, second = np.asarray(memoryview(array)), np.from_dlpack(array)
    copy = np.from_dlpack(array, copy=True)
    first[1, 2] = 99
    assert second[1, 2] == 99 and copy[1, 2] != 99
    del array
    gc.collect()
    assert first[1, 2] == 99


def test_rows_of_an_array_lie_on_its_memory() -> None:
    array = raw("int16", [3, 2]).run(np.arange(6, dtype=np.int16).tobytes(), 0, 0, 0)
    rows = list(array)
    assert [np.asarray(row).tolist() for row in rows] == [[0, 1], [2, 3], [4, 5]]
    assert array[-1].address == rows[2].address == array.address + 8 and rows[0].nbytes == 4
    del array
    gc.collect()
    memoryview(rows[2])[0] = 9
    assert np.from_dlpack(rows[2]).tolist() == [9, 5] and np.from_dlpack(rows[2][1]).tolist() == 5
    for wrong in (2, -3):
        with pytest.raises(IndexError):
            rows[0][wrong]
    with pytest.raises(TypeError):
        rows[0][0][0]


def test_a_scalar_has_no_extent() -> None:
    label = chain({"op": "Int"}).run(b"42\n", 0, 0, 0)
    assert label.shape == () and int(np.asarray(memoryview(label))) == 42
    assert np.from_dlpack(label).shape == ()
    with pytest.raises(TypeError):
        len(label)


def test_a_sample_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(_native.BeladyError, match="bytes"):
        raw("uint8", [4]).run(b"12345", 0, 0, 0)
    with pytest.raises(TypeError):
        raw().run(12, 0, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        raw().run(memoryview(b"12345678")[::2], 0, 0, 0)


def test_a_chain_can_begin_with_an_array() -> None:
    after = _native.Chain('[{"op": "ScaleShift", "scale": [2.0], "shift": [1.0]}]', before=1)
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = as_numpy(after.run_array(given, "float32", given.shape, 0, 0, 0))
    assert (made == given * 2 + 1).all()
    with pytest.raises(ValueError, match="not an array of float32 of shape"):
        after.run_array(given, "float32", (7,), 0, 0, 0)


def test_chains_run_in_threads_at_once() -> None:
    both = raw("uint8", [1000])
    data = [contents(sample, 1000) for sample in range(20)]
    wrong: list[int] = []

    def run() -> None:
        for sample, given in enumerate(data):
            if bytes(memoryview(both.run(given, 0, 0, sample))) != given:
                wrong.append(sample)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Transformers


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("depth", [1, 4])
def test_fields_are_arrays_lists_or_bytes(
    even: _native.Dataset, start: Start, threads: int, depth: int
) -> None:
    loader = start(even, epochs=2, order="torch", writable=False)
    fields = [(None, raw("uint8", [10, 100])), (None, raw("uint8")), (None, None)]
    seen = []
    for made in all_of(loader.transformed(fields, threads=threads, depth=depth)):
        ids = made.ids
        assert len(made) == len(ids) and made.kept is None and made.failures == []
        assert made.labels == [even.label(sample) for sample in ids]
        assert np.frombuffer(made.labels_bytes(), np.int64).tolist() == made.labels
        assert made.paths() == [even.sample_path(sample) for sample in ids]
        assert made.fields == 3
        wanted = [contents(sample, 1000) for sample in ids]
        array = as_numpy(made.field(0))
        assert array.shape == (len(ids), 10, 100) and array.tobytes() == b"".join(wanted)
        assert [as_numpy(one).tobytes() for one in made.field(1)] == wanted
        assert made.field(2) == wanted
        assert made.bytes >= 3 * sum(map(len, wanted))
        with pytest.raises(IndexError, match="the batch has 3"):
            made.field(3)
        seen.append((made.epoch, made.iteration, len(ids)))
    wanted = [(epoch, at, 8 if at < 7 else 4) for epoch in range(2) for at in range(8)]
    assert seen == wanted


def test_memory_stays_as_long_as_an_array_of_it(even: _native.Dataset, start: Start) -> None:
    transformer = start(even, epochs=6).transformed([(None, raw("uint8", [1000]))], depth=2)
    held = []
    while (made := transformer.next(timeout=60)) is not None:
        array = as_numpy(made.field(0))
        assert made.field(0).address % 64 == 0
        if made.iteration == 3:
            held.append((array, made.ids))
    transformer.close()
    del made, array, transformer
    gc.collect()
    assert len(held) == 6
    for array, ids in held:
        assert array.tobytes() == b"".join(contents(sample, 1000) for sample in ids)


def test_writing_to_a_batch_reaches_no_cache(even: _native.Dataset, start: Start) -> None:
    loader = start(even, epochs=3, writable=False)
    for made in all_of(loader.transformed([(None, raw("uint8", [1000]))])):
        array = as_numpy(made.field(0))
        assert array.tobytes() == b"".join(contents(sample, 1000) for sample in made.ids)
        array[:] = 255


def uneven(tmp_path: Path, bad: set[int]) -> _native.Dataset:
    """Samples of 100 bytes, and some that are shorter."""
    root = write_dataset(tmp_path / "uneven", size=100, samples=30)
    for at, path in enumerate(sorted(root.rglob("*.bin"))):
        if at in bad:
            path.write_bytes(b"short")
    return _native.Dataset.open(str(root))


BAD = {0, 1, 13, 29} | set(range(20, 25))


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_bad_samples_are_left_out_or_replaced(tmp_path: Path, start: Start, on_error: str) -> None:
    data = uneven(tmp_path, BAD)
    loader = start(data, batch=5)
    fields = [(None, raw("uint8", [100])), (None, None)]
    for made in all_of(loader.transformed(fields, on_error=on_error, threads=2)):
        good = [at for at, sample in enumerate(made.ids) if sample not in BAD]
        failed = [at for at, sample in enumerate(made.ids) if sample in BAD]
        assert [at for at, _ in made.failures] == failed
        assert all("5 bytes" in what for _, what in made.failures)
        kept = good
        if on_error == "replace" and good:
            kept = [min((g for g in good if g >= at), default=good[0]) for at in range(5)]
        assert made.kept == (kept if failed else None)
        wanted = [contents(made.ids[at], 100) for at in kept]
        array = as_numpy(made.field(0))
        assert array.shape == (len(kept), 100) and array.tobytes() == b"".join(wanted)
        assert made.field(1) == wanted


def test_a_bad_sample_is_raised_with_its_name_and_the_run_goes_on(
    tmp_path: Path, start: Start
) -> None:
    data = uneven(tmp_path, {7})
    transformer = start(data, batch=5, epochs=2).transformed([(None, raw("uint8", [100]))])
    seen = 0
    errors = []
    for _ in range(12):
        try:
            made = transformer.next(timeout=60)
            assert made is not None and 7 not in made.ids
            seen += len(made)
        except DecodeError as error:
            errors.append(error)
    assert transformer.next(timeout=60) is None
    assert seen == 50 and len(errors) == 2
    for error in errors:
        assert error.sample == 7 and error.path == data.sample_path(7)
        assert str(error).startswith(f"decode failed on {error.path}: it has 5 bytes")


def test_a_loader_that_was_transformed_is_closed(even: _native.Dataset, start: Start) -> None:
    loader = start(even)
    transformer = loader.transformed([(None, None)])
    with pytest.raises(_native.BeladyError, match="closed"):
        loader.next()
    with pytest.raises(_native.BeladyError, match="closed or in use"):
        loader.transformed([(None, None)])
    loader.close()
    del loader
    gc.collect()
    assert sum(len(made) for made in all_of(transformer)) == 60
    transformer.close()
    with pytest.raises(_native.BeladyError, match="closed"):
        transformer.next()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"threads": 0}, "threads"),
        ({"depth": 0}, "depth"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_wrong_arguments_are_named_and_cost_nothing(
    even: _native.Dataset, start: Start, wrong: dict[str, Any], match: str
) -> None:
    loader = start(even)
    with pytest.raises(ValueError, match=match):
        loader.transformed([(None, None)], **wrong)
    assert loader.next(timeout=60) is not None


def test_an_order_of_a_callback_can_be_read_outside_of_a_loader(
    even: _native.Dataset, start: Start
) -> None:
    orders = _native.Orders.python(
        lambda epoch: (range(epoch, 20 + epoch), None) if epoch < 3 else None, samples=60, batch=5
    )
    loader = start(even, orders=orders, epochs=None)
    transformer = loader.transformed([(None, None)])
    del loader, orders
    gc.collect()
    ids = [made.ids for made in all_of(transformer)]
    assert ids == [list(range(e + at, e + at + 5)) for e in range(3) for at in range(0, 20, 5)]


def test_an_exception_of_a_callback_is_raised(even: _native.Dataset, start: Start) -> None:
    def epoch(number: int) -> Any:
        raise KeyError("of the user's")

    orders = _native.Orders.python(epoch, samples=60, batch=5)
    transformer = start(even, orders=orders).transformed([(None, None)])
    with pytest.raises(KeyError, match="of the user's"):
        transformer.next(timeout=60)


def test_a_timeout_says_what_it_waited_for(tmp_path: Path, start: Start) -> None:
    root = write_dataset(tmp_path / "slow", size=100)
    slow = _native.Dataset.open(str(root), throttle="1:1GB/s,latency:2s")
    transformer = start(slow, ram=0).transformed([(None, None)])
    with pytest.raises(TimeoutError, match="the loader waits for .*samples of batch 0"):
        transformer.next(timeout=0.2)
    assert "batch 0" in transformer.waiting_for()
    transformer.close()


def test_blocks_are_announced_once_and_when_they_are_freed(
    even: _native.Dataset, start: Start
) -> None:
    blocks: list[tuple[int, int, bool, int]] = []

    def on_block(address: int, length: int, made: bool) -> None:
        blocks.append((address, length, made, threading.get_ident()))

    transformer = start(even, epochs=5).transformed(
        [(None, raw("uint8", [1000]))], depth=2, on_block=on_block
    )
    arrays = None
    while (made := transformer.next(timeout=60)) is not None:
        arrays = made.field(0)
        lies = [a <= arrays.address < a + length for a, length, _, _ in blocks]
        assert any(lies), "no memory comes unannounced"
    assert all(made for _, _, made, _ in blocks) and 1 <= len(blocks) <= 5
    assert len({address for address, *_ in blocks}) == len(blocks)
    transformer.close()
    del transformer
    gc.collect()
    announced = len(blocks)
    assert all(made for _, _, made, _ in blocks), "an array still lies there"
    del arrays
    gc.collect()
    gone = blocks[announced:]
    assert {(a, n) for a, n, _, _ in gone} == {(a, n) for a, n, _, _ in blocks[:announced]}
    assert not any(made for _, _, made, _ in gone)
    assert {thread for *_, thread in blocks} == {threading.get_ident()}


def test_an_exception_of_on_block_is_raised(even: _native.Dataset, start: Start) -> None:
    def on_block(address: int, length: int, made: bool) -> None:
        if made:
            raise RuntimeError("cannot pin")

    transformer = start(even).transformed([(None, raw("uint8", [1000]))], on_block=on_block)
    with pytest.raises(RuntimeError, match="cannot pin"):
        transformer.next(timeout=60)
    transformer.close()


def test_transforms_are_counted(even: _native.Dataset, start: Start) -> None:
    transformer = start(even, epochs=2).transformed([(None, raw("uint8", [1000]))])
    assert sum(len(made) for made in all_of(transformer)) == 120
    figures = transformer.stats()
    assert figures["transform_us"]["count"] == 120
    assert figures["transform_idle_ns"] > 0 and figures["transform_failures"] == 0
    assert figures["delivered"] == {"samples": 120, "bytes": 120_000}
    assert figures["held"][0]["samples"] == 60


def test_closing_wakes_waiting_threads(tmp_path: Path, start: Start) -> None:
    root = write_dataset(tmp_path / "slow", size=100)
    slow = _native.Dataset.open(str(root), throttle="1:1GB/s,latency:3s")
    transformer = start(slow, ram=0).transformed([(None, None)])
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            transformer.next()
        except _native.BeladyError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    transformer.close()
    thread.join(timeout=60)
    assert not thread.is_alive() and "closed" in str(raised[0])


# Parts


def tar_member(name: str, body: bytes) -> bytes:
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.size = len(body)
        tar.addfile(info, io.BytesIO(body))
    return out.getvalue()[: 512 + -(-len(body) // 512) * 512]


def test_members_of_a_webdataset_are_fields(tmp_path: Path, start: Start) -> None:
    shard = tmp_path / "shards" / "a.tar"
    shard.parent.mkdir()
    members = [
        tar_member(f"{at}.x", contents(at, 50)) + tar_member(f"{at}.cls", str(at).encode())
        for at in range(12)
    ]
    shard.write_bytes(b"".join(members) + bytes(1024))
    data = _native.Dataset.open(str(shard.parent), format="webdataset")
    fields = [("y;x", raw("uint8", [50])), ("cls", chain({"op": "Int"})), ("cls", None)]
    for made in all_of(start(data, batch=4).transformed(fields)):
        wanted = b"".join(contents(sample, 50) for sample in made.ids)
        assert as_numpy(made.field(0)).tobytes() == wanted
        assert as_numpy(made.field(1)).tolist() == made.ids
        assert made.field(2) == [str(sample).encode() for sample in made.ids]
    member = _native.sample_part(members[3], "cls", chain({"op": "Int"}))
    assert int(as_numpy(member)) == 3 and _native.sample_part(members[3], "cls") == b"3"
    with pytest.raises(_native.BeladyError, match="it has no member jpg; it has x, cls"):
        _native.sample_part(members[3], "jpg")


def test_features_of_an_example_are_fields() -> None:
    def message(field: int, *parts: bytes) -> bytes:
        body = b"".join(parts)
        return bytes([field << 3 | 2, len(body)]) + body

    def entry(name: bytes, values: bytes) -> bytes:
        return message(1, message(1, name), message(2, values))

    example = message(
        1,
        entry(b"image", message(1, message(1, b"JPEG"))),
        entry(b"label", message(3, message(1, b"\x2a"))),
        entry(b"box", message(2, message(1, np.array([1.5, 2], "<f4").tobytes()))),
    )
    assert _native.sample_part(example, "image") == b"JPEG"
    assert as_numpy(_native.sample_part(example, "label")).tolist() == [42]
    assert int(as_numpy(_native.sample_part(example, "label", chain({"op": "Int"})))) == 42
    box = _native.sample_part(example, "box", raw("float32", [2]))
    assert as_numpy(box).tolist() == [1.5, 2]


# Images


def bitmap(pixels: np.ndarray) -> bytes:
    """An image as a BMP file, which anyone can write."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, -(-3 * width // 4) * 4), np.uint8)
    rows[:, : 3 * width] = pixels.reshape(height, -1)
    header = struct.pack("<2sIII", b"BM", 54 + rows.size, 0, 54)
    return header + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6) + rows.tobytes()


def pictures(root: Path) -> _native.Dataset:
    """Images of different sizes, and one that breaks off."""
    root.mkdir()
    noise = np.random.default_rng(1)
    for at in range(24):
        file = bitmap(noise.integers(0, 256, (20 + 3 * at, 60 - at, 3), np.uint8))
        (root / f"{at:02}.bmp").write_bytes(file[:100] if at == 5 else file)
    return _native.Dataset.open(str(root), format="flat")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_a_batch_is_what_the_chain_makes_of_each_sample(
    tmp_path: Path, start: Start, dtype: str
) -> None:
    data = pictures(tmp_path / "pictures")
    steps: list[dict[str, Any]] = [
        {"op": "Decode", "mode": "RGB", "apply_exif_orientation": False, "max_pixels": 10**6},
        {
            "op": "RandomResizedCrop",
            "size": [16, 16],
            "scale": [0.08, 1.0],
            "ratio": [0.75, 1.33],
            "interpolation": "bilinear",
            "antialias": True,
        },
        {"op": "RandomHorizontalFlip", "p": 0.5},
        {"op": "ToTensor", "dtype": dtype, "layout": "CHW"},
    ]
    made_of = chain(*steps)
    assert made_of.output == (dtype, (3, 16, 16))
    seen = {}
    for threads in (1, 3):
        loader = start(data, batch=5, epochs=2, order="torch", writable=False)
        batches = all_of(
            loader.transformed(
                [(None, made_of)], seed=9, threads=threads, on_error="skip", first=(4, 0)
            )
        )
        for made in batches:
            assert [made.ids[at] for at, _ in made.failures] == [5] * (5 in made.ids)
            kept = [sample for sample in made.ids if sample != 5]
            rows = bytes(memoryview(made.field(0)))
            length = len(rows) // len(kept)
            for at, sample in enumerate(kept):
                row = rows[at * length :][:length]
                alone = made_of.run(data.read([sample])[0], 9, 4 + made.epoch, sample)
                assert row == bytes(memoryview(alone))
                assert seen.setdefault((made.epoch, sample), row) == row
    assert len(seen) == 46 and len(set(seen.values())) == 46, "each epoch draws other crops"
