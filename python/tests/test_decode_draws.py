"""Random Python code in `decode`: as with torch, where `num_workers=0` runs it on the user's
thread.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from typing import Any

import numpy as np
import numpy.random as numpy_random
import pytest
import torch
from support import make

import belady


def draw_python(sample: Any, label: Any) -> tuple[float, int]:
    return random.random(), label


def draw_numpy(sample: Any, label: Any) -> tuple[float, int]:
    return float(np.random.random()), label


def draw_torch(sample: Any, label: Any) -> tuple[float, int]:
    return float(torch.rand(())), label


def nothing(sample: Any, label: Any) -> tuple[int, int]:
    return len(sample), label


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def generators() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def run(data: belady.Dataset, decode: Any, **arguments: Any) -> tuple[list[Any], Any]:
    seed_all(5)
    drawn = []
    with make(data, batch_size=7, decode=decode, num_threads=4, **arguments) as loader:
        for _ in range(2):
            for values, _ in loader:
                drawn.append((values.tolist(), random.random(), float(torch.rand(()))))
    return drawn, generators()


@pytest.mark.parametrize("decode", [draw_python, draw_numpy, draw_torch])
def test_decode_that_draws_is_reproducible(data: belady.Dataset, decode: Any) -> None:
    assert run(data, decode) == run(data, decode)


@pytest.mark.parametrize("decode", [draw_python, draw_numpy, draw_torch])
def test_decode_that_draws_draws_what_it_draws_under_torch(
    data: belady.Dataset, decode: Any
) -> None:
    class Decoded(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> Any:
            return decode(*data[index])

    seed_all(5)
    theirs = []
    loader = torch.utils.data.DataLoader(Decoded(), 7)
    for _ in range(2):
        for values, _ in loader:
            theirs.append((values.tolist(), random.random(), float(torch.rand(()))))
    assert run(data, decode) == (theirs, generators())


def test_decode_that_draws_nothing_leaves_the_generators_to_the_program(
    data: belady.Dataset,
) -> None:
    seed_all(5)
    with make(data, batch_size=7, decode=nothing) as loader:
        for _ in loader:
            pass
    loaded = generators()
    seed_all(5)
    for _ in torch.utils.data.DataLoader(range(60), 7):  # type: ignore[arg-type]
        pass
    assert loaded == generators()


def draw_late(sample: Any, label: Any) -> tuple[float, int]:
    """Draws for one class only, slowly, so that the program waits for it."""
    time.sleep(0.002)
    return (random.random() if label == 2 else 0.0), label


def test_a_decode_that_draws_for_some_samples_only_warns(
    data: belady.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="belady"):
        run(data, draw_late)
    assert caplog.text.count("draws random numbers for some samples") == 1


def draw_own(sample: Any, label: Any) -> tuple[float, int]:
    """Imports a module with its own generator, and draws from another one."""
    sys.modules["numpy.random"] = numpy_random
    return float(np.random.default_rng(label).random()), threading.get_ident()


def test_a_module_that_decode_imports_is_no_draw(
    data: belady.Dataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "numpy.random")
    with caplog.at_level(logging.INFO, logger="belady"):
        with make(data, batch_size=7, decode=draw_own, num_threads=2) as loader:
            threads = {int(thread) for _, idents in loader for thread in idents}
    assert "draws from a generator" not in caplog.text
    assert threads - {threading.get_ident()}
