"""The state of torch's CPU generator, without torch.

torch shuffles with MT19937, which is also the generator of Python's `random`. So a state can
be moved on by any number of draws at C speed, in a process that has never imported torch. A
`torch.Generator` gives its state as 5,056 bytes that are mostly padding:

    0  seed (u64)   8  left (i32)   16  next (u64)   24  624 words (u64 each)   5016  the rest

A word is drawn when `left` sinks to zero: then all 624 are made anew.
"""

from __future__ import annotations

import base64
import random
import struct
import sys
from typing import Any

WORDS = 624
#: From here on torch's `randperm` takes 64-bit draws.
LARGE = (2**32 - 1) // 20
_TORCH_BYTES = 5056
_FIRST_WORD = 24
_CHUNK = 1 << 16
#: Words that two states are looked for to be apart: some tens of milliseconds.
_FAR = 1 << 20


class State:
    """Where a generator stands: its 624 words, and how many of them are used."""

    __slots__ = ("used", "words")

    def __init__(self, words: tuple[int, ...], used: int) -> None:
        self.words = words
        self.used = used

    @classmethod
    def parse(cls, blob: bytes) -> State:
        """What `torch.Generator.get_state()` gives, as bytes."""
        if len(blob) != _TORCH_BYTES:
            raise ValueError(
                f"a state of {len(blob)} bytes is not one of torch's CPU generator, which has "
                f"{_TORCH_BYTES}; give a torch.Generator of the device cpu"
            )
        left = struct.unpack_from("<i", blob, 8)[0]
        return cls(struct.unpack_from(f"<{WORDS}Q", blob, _FIRST_WORD), WORDS + 1 - left)

    def blob(self, like: bytes | None = None) -> bytes:
        """As torch writes it; what is not of our concern is taken over from `like`."""
        blob = bytearray(_TORCH_BYTES if like is None else like)
        struct.pack_into("<iiQ", blob, 8, WORDS + 1 - self.used, 1, self.used)
        struct.pack_into(f"<{WORDS}Q", blob, _FIRST_WORD, *self.words)
        return bytes(blob)

    def skip(self, words: int) -> State:
        """The state after so many words were drawn."""
        twister = random.Random()
        twister.setstate((3, (*self.words, self.used), None))
        while words > 0:
            chunk = min(words, _CHUNK)
            twister.getrandbits(32 * chunk)
            words -= chunk
        drawn: tuple[int, ...] = twister.getstate()[1]
        return State(drawn[:-1], drawn[-1])

    def number(self) -> int:
        """What `torch.empty((), dtype=torch.int64).random_()` draws next."""
        twister = random.Random()
        twister.setstate((3, (*self.words, self.used), None))
        high, low = twister.getrandbits(32), twister.getrandbits(32)
        return ((high << 32) | low) % 2**63

    def words_until(self, later: State) -> int | None:
        """Words that were drawn from here to there, if it is not too far to look for."""
        if self.words == later.words and self.used <= later.used:
            return later.used - self.used
        twister = random.Random()
        twister.setstate((3, (*self.words, WORDS), None))
        for rounds in range(1, _FAR // WORDS):
            twister.getrandbits(32 * WORDS)
            state = twister.getstate()[1]
            if state[:-1] == later.words:
                return rounds * WORDS + later.used - self.used
        return None

    def text(self) -> str:
        """For JSON: 3.4 KB."""
        packed = struct.pack(f"<{WORDS}IH", *self.words, self.used)
        return base64.b64encode(packed).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> State:
        """What `text` gave."""
        packed = base64.b64decode(text, validate=True)
        *words, used = struct.unpack(f"<{WORDS}IH", packed)
        return cls(tuple(words), used)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and (self.used, self.words) == (other.used, other.words)

    __hash__ = None  # type: ignore[assignment]


def randperm_words(samples: int) -> int:
    """Words that `torch.randperm(samples)` draws."""
    return max(0, samples - 1) if samples < LARGE else 2 * samples


#: Words that a loader's base seed takes: one 64-bit number.
BASE_SEED_WORDS = 2


def read(generator: Any) -> State:
    """The state of a `torch.Generator`."""
    return State.parse(bytes(generator.get_state().numpy().tobytes()))


def write(generator: Any, state: State) -> None:
    """Sets a `torch.Generator` to a state."""
    tensor = generator.get_state()
    blob = state.blob(like=tensor.numpy().tobytes())
    tensor.numpy()[:] = memoryview(blob)
    generator.set_state(tensor)


def of(sampler: Any) -> Any:
    """What one of torch's samplers draws from: its own generator, or torch's default one."""
    own = getattr(sampler, "generator", None)
    if own is not None:
        return own
    torch: Any = sys.modules["torch"]
    return torch.default_generator


def check(generator: Any) -> None:
    """Refuses what is not a generator of the CPU."""
    if not (hasattr(generator, "get_state") and hasattr(generator, "set_state")):
        raise TypeError(
            "generator has to be a torch.Generator, not "
            f"{type(generator).__name__}; without torch use seed"
        )
    device = str(getattr(generator, "device", "cpu"))
    if not device.startswith("cpu"):
        raise ValueError(f"generator is on {device}; torch's loaders take one of the cpu")
