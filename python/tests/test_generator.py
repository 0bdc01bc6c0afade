"""torch's generator, moved on without torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from belady import generator as twister
from belady.generator import State


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**64 - 1), samples=st.integers(1, 3000), epochs=st.integers(1, 4))
def test_skipping_is_drawing(seed: int, samples: int, epochs: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    state = twister.read(drawn)
    for _ in range(epochs):
        torch.empty((), dtype=torch.int64).random_(generator=drawn)
        torch.randperm(samples, generator=drawn)
        state = state.skip(twister.BASE_SEED_WORDS + twister.randperm_words(samples))
    assert state == twister.read(drawn)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**64 - 1), words=st.integers(0, 2000))
def test_a_state_that_is_written_draws_on(seed: int, words: int) -> None:
    original = torch.Generator().manual_seed(seed)
    state = twister.read(original).skip(words)
    torch.empty(words, dtype=torch.int32).random_(generator=original)
    other = torch.Generator()
    twister.write(other, State.from_text(state.text()))
    assert torch.equal(
        torch.randperm(700, generator=other), torch.randperm(700, generator=original)
    )


def test_what_is_no_generator_of_the_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="5056"):
        State.parse(b"short")
    with pytest.raises(TypeError, match=r"torch\.Generator"):
        twister.check("seed")
