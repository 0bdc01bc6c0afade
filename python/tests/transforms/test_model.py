"""Any loader that transforms gives what a few naive lines give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support import make

import belady
from belady import transforms as T

FILES = 30
NUMBERS = 8


def same(value: Any) -> Any:
    return value


STEPS = [T.Raw("int16", (2, 4)), T.ToDtype("float32"), T.ScaleShift(2, 1)]
CHAINS: dict[str, Any] = {
    "native": STEPS,
    "functions": [STEPS[0], same, *STEPS[1:], same],
    "fields": {"numbers": STEPS, "label": T.Label()},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[frozenset[int], belady.Dataset]:
    """Datasets by the ids of the files that are one byte short."""
    made = {}
    for name, bad in enumerate((frozenset(), frozenset({0, 7, 8, 29}), frozenset(range(3, 24)))):
        root: Path = tmp_path_factory.mktemp("numbers") / str(name)
        root.mkdir()
        for number in range(FILES):
            data = np.arange(number, number + NUMBERS, dtype=np.int16).tobytes()
            (root / f"{number:03}.bin").write_bytes(data[:-1] if number in bad else data)
        made[bad] = belady.flat(root)
    return made


def expected(ids: list[int], bad: frozenset[int], on_error: str) -> list[int] | None:
    """The samples that a batch has in the end; None if it is an error."""
    good = [id_ for id_ in ids if id_ not in bad]
    if len(good) == len(ids) or on_error == "skip":
        return good
    if on_error == "raise":
        return None
    if not good:
        return []
    return [next((i for i in ids[at:] if i not in bad), good[0]) for at in range(len(ids))]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.sampled_from(sorted(CHAINS)),
    which=st.integers(0, 2),
    batch=st.integers(1, 11),
    threads=st.integers(1, 4),
    ahead=st.integers(1, 4),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    on_error=st.sampled_from(["raise", "skip", "replace"]),
    seed=st.integers(0, 3),
)
def test_batches_are_what_naive_lines_give(
    folders: dict[frozenset[int], belady.Dataset],
    kind: str, which: int, batch: int, threads: int, ahead: int,
    shuffle: bool, drop_last: bool, on_error: str, seed: int,
) -> None:  # fmt: skip
    bad = list(folders)[which]
    loader = make(
        folders[bad], batch_size=batch, shuffle=shuffle, drop_last=drop_last, seed=seed,
        on_error=on_error, num_threads=threads, prefetch_factor=ahead, transform=CHAINS[kind],
    )  # fmt: skip
    with loader:
        for _ in range(2):
            promised = [expected(ids, bad, on_error) for ids in loader.peek()]
            iterator = iter(loader)
            for ids in promised:
                if ids == []:
                    continue  # a batch of which nothing is left is passed over
                if ids is None:
                    with pytest.raises(belady.DecodeError, match=r"decode failed on .*\.bin: "):
                        next(iterator)
                    continue
                made = next(iterator)
                numbers, labels = made.values() if isinstance(made, dict) else made
                wanted = [np.arange(id_, id_ + NUMBERS).reshape(2, 4) * 2.0 + 1 for id_ in ids]
                assert np.array_equal(np.asarray(numbers), np.stack(wanted))
                assert len(labels) == len(ids)
            assert next(iterator, None) is None
