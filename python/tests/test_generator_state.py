"""torch's generator, moved natively, compared with torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from belady._native import GeneratorState, randperm_words
from belady._orders import generator_state


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**64 - 1), samples=st.integers(1, 3000), epochs=st.integers(1, 4))
def test_skipping_is_drawing(seed: int, samples: int, epochs: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    state = generator_state.read(drawn)
    for _ in range(epochs):
        torch.empty((), dtype=torch.int64).random_(generator=drawn)
        torch.randperm(samples, generator=drawn)
        state = state.skip(generator_state.BASE_SEED_WORDS + randperm_words(samples))
    assert state == generator_state.read(drawn)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**64 - 1), words=st.integers(0, 2000))
def test_a_state_from_text_draws_the_same_numbers(seed: int, words: int) -> None:
    original = torch.Generator().manual_seed(seed)
    state = generator_state.read(original).skip(words)
    torch.empty(words, dtype=torch.int32).random_(generator=original)
    other = torch.Generator()
    generator_state.write(other, generator_state.from_text(generator_state.to_text(state)))
    assert torch.equal(
        torch.randperm(700, generator=other), torch.randperm(700, generator=original)
    )


def test_anything_but_a_generator_of_the_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="5056"):
        GeneratorState.from_torch(b"short")
    with pytest.raises(TypeError, match=r"torch\.Generator"):
        generator_state.check("seed")


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**64 - 1), words=st.integers(0, 2000))
def test_the_next_number_is_the_one_that_torch_draws(seed: int, words: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    torch.empty(words, dtype=torch.int32).random_(generator=generator)
    number = generator_state.read(generator).next_int64()
    assert number == int(torch.empty((), dtype=torch.int64).random_(generator=generator))


@settings(deadline=None, max_examples=30)
@given(start=st.integers(0, 700), words=st.integers(0, 5000))
def test_the_words_between_two_states_are_counted(start: int, words: int) -> None:
    state = generator_state.read(torch.Generator().manual_seed(3)).skip(start)
    assert state.words_until(state.skip(words)) == words


def test_a_state_that_is_too_far_ahead_or_before_is_not_found() -> None:
    state = generator_state.read(torch.Generator().manual_seed(3)).skip(1000)
    assert state.words_until(state.skip(1 << 21)) is None
    assert state.skip(1).words_until(state) is None


@pytest.mark.parametrize("text", ["", "AAAA", "no base64!", None])
def test_a_damaged_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="generator in this state is damaged"):
        generator_state.from_text(text)
