"""What the processor does for a GPU that decodes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import belady
from belady import _native, transforms as T

CHAIN = [T.Decode(), T.RandomResizedCrop(16), T.RandomHorizontalFlip()]


@pytest.fixture
def batch(tmp_path: Path) -> _native.Batch:
    """Six JPEGs, one that is cut off, a PNG, and an empty file."""
    random = np.random.default_rng(0)
    for number in range(8):
        file = io.BytesIO()
        picture = Image.fromarray(random.integers(0, 256, (30 + number, 40, 3), dtype=np.uint8))
        picture.save(file, "PNG" if number == 7 else "JPEG")
        content = file.getvalue()
        (tmp_path / f"{number}.jpg").write_bytes(content[:300] if number == 6 else content)
    (tmp_path / "8.jpg").write_bytes(b"")
    with belady.DataLoader(belady.open(tmp_path, format="flat"), batch_size=9) as loader:
        source = next(iter(loader))._source
        assert source is not None
        return source


def chain() -> _native.Chain:
    return _native.Chain(json.dumps([step.as_json() for step in CHAIN]))


def test_gpu_decoding_is_refused_for_anything_but_whole_jpegs(batch: _native.Batch) -> None:
    windows = _native.DecodeSplit(chain(), 2).windows(batch, 5, 1)
    assert len(windows) == 9
    assert windows.split() == ([0, 1, 2, 3, 4, 5], [6, 7, 8])


@pytest.mark.parametrize("threads", [1, 3, 20])
def test_threads_make_what_the_chain_makes(batch: _native.Batch, threads: int) -> None:
    positions = [7, 2, 8, 0, 6]
    into = np.zeros((5, 16, 16, 3), dtype=np.uint8)
    failed = dict(_native.DecodeSplit(chain(), threads).run(batch, positions, 5, 1, into))
    assert sorted(failed) == [2, 4]
    for row, at in enumerate(positions):
        if row not in failed:
            alone = chain().run(batch[at], 5, 1, batch.ids[at])
            np.testing.assert_array_equal(into[row], np.asarray(memoryview(alone)))


def test_files_are_gathered_one_after_the_other(batch: _native.Batch) -> None:
    positions = [3, 8, 1]
    into = np.zeros(_native.DecodeSplit.bytes(batch, positions), dtype=np.uint8)
    ends = _native.DecodeSplit.gather(batch, positions, into)
    expected = [bytes(batch[at]) for at in positions]
    assert into.tobytes() == b"".join(expected)
    assert ends == list(np.cumsum([len(file) for file in expected]))


def test_the_table_has_64_bytes_an_image(batch: _native.Batch) -> None:
    windows = _native.DecodeSplit(chain(), 1).windows(batch, 5, 1)
    table = windows.table([2, 7], {2: 1000}, {7: 2000}, 16, 16)
    assert len(table) == 128
    first, second = (np.frombuffer(part, dtype="<i4") for part in (table[:64], table[64:]))
    assert (first[0], first[2], *first[4:6]) == (1000, 40 * 32, 40, 1)
    assert first[10:12].tolist() == [16, 16]
    assert (second[0], second[2], *second[4:6]) == (2000, 1, 48, 3)
    assert second[6:].tolist() == [0, 0, 16, 16, 16, 16, 0, 0, 0, 0]


def test_mistakes_are_errors(batch: _native.Batch) -> None:
    share = _native.DecodeSplit(chain(), 1)
    with pytest.raises(IndexError):
        share.run(batch, [9], 0, 0, np.zeros(768, dtype=np.uint8))
    with pytest.raises(BufferError):
        share.run(batch, [0], 0, 0, np.zeros(767, dtype=np.uint8))
    with pytest.raises(IndexError):
        share.windows(batch, 0, 0).table([0], {}, {}, 16, 16)
    with pytest.raises(ValueError, match="Pad"):
        _native.DecodeSplit(
            _native.Chain(json.dumps([T.Decode().as_json(), T.Pad(2).as_json()])), 1
        )
