"""Where the processes of a job meet: each gives something and gets what all gave.

A `Meeting` is what the native side asks when ranks exchange addresses, the key of the job or what
they run. The places here are other libraries' own: torch's store, jax's, MPI. They are reached
only by who belongs to the job, so the key of the job may be handed out there.

What is waited for is looked for again and again, with pauses, rather than in a call of the library:
Ctrl-C works, and who has not come can be named.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..errors import BeladyError

log = logging.getLogger("belady")

#: Missing ranks are named after so many seconds, then at pauses that double up to the longest; as the
#: native meetings do (`telling.rs`).
_TELL_AFTER = 5.0
_TELL_AT_LEAST_EVERY = 300.0
#: torch's store ends the connection of who gives more than 8 MiB at once.
_PIECE = 1 << 20


class Meeting(ABC):
    """One rank's seat at a meeting."""

    #: What the place is called in messages.
    place: str
    #: Seconds between two looks, at most. 1,000 ranks then ask a store 4,000 times a second.
    longest_pause = 0.25

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @abstractmethod
    def exchange(self, name: str, mine: bytes, limit: float) -> list[bytes]:
        """What all ranks gave under this name, by rank, once all have; within `limit` seconds."""

    def release(self, names: Sequence[str]) -> None:
        """This rank needs what was given to these exchanges no more. A place that keeps it may let go of
        what all ranks have released."""

    def reached_by(self) -> str | None:
        """A host that is reached through the network that the job uses, if one is known."""
        return None


class Patience:
    """Waits with pauses that become longer, names the missing ranks less and less often, and ends with an
    error."""

    def __init__(self, meeting: Meeting, name: str, limit: float) -> None:
        self._meeting = meeting
        self._name = name
        self._limit = limit
        self._began = time.monotonic()
        self._pause = 0.001
        self._tell_at = _TELL_AFTER

    def pause(self, missing: Sequence[int] | None) -> None:
        """A pause. `missing` have not come; None if it is not known who."""
        waited = time.monotonic() - self._began
        if waited >= self._limit:
            raise BeladyError(self._sentence(missing))
        if waited >= self._tell_at:
            self._tell_at = waited + min(waited, _TELL_AT_LEAST_EVERY)
            log.warning(
                "belady has been waiting for %.0f s for %s of %d to come to %s at %s; every rank has to make "
                "the same loaders, and one that only some ranks make takes peers=None",
                waited,
                ranks(missing),
                self._meeting.size,
                self._name,
                self._meeting.place,
            )
        time.sleep(min(self._pause, self._limit))
        self._pause = min(2 * self._pause, self._meeting.longest_pause)

    def near_its_end(self) -> bool:
        """Whether the next pause has something to tell, for which it should be known who is missing."""
        waited = time.monotonic() - self._began
        return waited >= min(self._limit, self._tell_at)

    def _sentence(self, missing: Sequence[int] | None) -> str:
        return (
            f"{ranks(missing)} of {self._meeting.size} did not come to {self._name} at "
            f"{self._meeting.place} within {self._limit:g} s: see whether they run, or whether the "
            "world is smaller; every rank has to make the same loaders (peers=None makes one that "
            "works alone)"
        )


def ranks(numbers: Sequence[int] | None) -> str:
    """ "rank 3", "ranks 1, 2"."""
    if numbers is None:
        return "some ranks"
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {', '.join(map(str, numbers))}"


class Store(Meeting):
    """A meeting at a store of keys and values.

    A value is one or several pieces: stores refuse large ones. The number of pieces is written after
    them, so who finds it finds them all.
    """

    def exchange(self, name: str, mine: bytes, limit: float) -> list[bytes]:
        self._give(f"{name}/{self.rank}", mine)
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        patience = Patience(self, name, limit)
        while not self.has_all(keys):
            patience.pause(self._missing(keys) if patience.near_its_end() else None)
        heads = self.get(keys)
        return [self._whole(key, head) for key, head in zip(keys, heads, strict=True)]

    def release(self, names: Sequence[str]) -> None:
        for name in names:
            counter = f"{name}/released"
            if self.add_one(counter) < self.size:
                continue
            for rank in range(self.size):
                self._delete_whole(f"{name}/{rank}")
            self.delete(counter)

    def _delete_whole(self, key: str) -> None:
        if not self.has_all([key]):
            return  # the rank has failed before it came to this exchange
        head = self.get([key])[0]
        for number in range(int(head[1:]) if head[:1] == b"#" else 0):
            self.delete(f"{key}/{number}")
        self.delete(key)

    def _give(self, key: str, value: bytes) -> None:
        pieces = [value[start : start + _PIECE] for start in range(0, len(value), _PIECE)]
        if len(pieces) <= 1:
            self.set(key, b"=" + value)
            return
        for number, piece in enumerate(pieces):
            self.set(f"{key}/{number}", piece)
        self.set(key, b"#%d" % len(pieces))

    def _whole(self, key: str, head: bytes) -> bytes:
        if head[:1] == b"=":
            return head[1:]
        # One after another, so that nobody sends more at once than a store takes.
        return b"".join(self.get([f"{key}/{number}"])[0] for number in range(int(head[1:])))

    def _missing(self, keys: Sequence[str]) -> list[int]:
        return [rank for rank, key in enumerate(keys) if not self.has_all([key])]

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Sets a key, or replaces its value."""

    @abstractmethod
    def has_all(self, keys: Sequence[str]) -> bool:
        """Whether all of the keys are there, without waiting."""

    @abstractmethod
    def get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of keys that are there."""

    @abstractmethod
    def add_one(self, key: str) -> int:
        """Counts up from 0; what it has come to."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Lets go of a key that may be there."""
