"""Reads and moves torch's CPU generators.

torch shuffles with MT19937. The native module has the generator itself, so orders are drawn in
processes that never import torch. Here are the conversions from and to `torch.Generator`.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

from .._native import GeneratorState

#: Words that a loader's base seed takes: one 64-bit number.
BASE_SEED_WORDS = 2


def read(generator: Any) -> GeneratorState:
    """Returns the state of a `torch.Generator`."""
    return GeneratorState.from_torch(generator.get_state().numpy().tobytes())


def write(generator: Any, state: GeneratorState) -> None:
    """Sets a `torch.Generator` to a state."""
    tensor = generator.get_state()
    tensor.numpy()[:] = memoryview(state.to_torch(like=tensor.numpy().tobytes()))
    generator.set_state(tensor)


def to_text(state: GeneratorState) -> str:
    """Returns the state as text for JSON: 3.4 KB."""
    return base64.b64encode(state.to_bytes()).decode("ascii")


def from_text(text: str) -> GeneratorState:
    """Returns the state that `to_text` wrote.

    Raises ValueError for text that is damaged.
    """
    try:
        return GeneratorState.from_bytes(base64.b64decode(text, validate=True))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the generator in this state is damaged: {error}") from error


def default() -> Any:
    """Returns torch's default generator."""
    torch: Any = sys.modules["torch"]
    return torch.default_generator


def of(sampler: Any) -> Any:
    """Returns the generator of one of torch's samplers: its own, or torch's default one."""
    own = getattr(sampler, "generator", None)
    return default() if own is None else own


def check(generator: Any) -> None:
    """Raises unless it is a generator of the CPU."""
    if not (hasattr(generator, "get_state") and hasattr(generator, "set_state")):
        raise TypeError(
            "generator has to be a torch.Generator, not "
            f"{type(generator).__name__}; without torch use seed"
        )
    device = str(getattr(generator, "device", "cpu"))
    if not device.startswith("cpu"):
        raise ValueError(f"generator is on {device}; torch's loaders take one of the cpu")
