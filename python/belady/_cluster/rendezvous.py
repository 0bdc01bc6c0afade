"""The rendezvous: each rank gives a value and gets the values of all.

The native module calls a `Rendezvous` when ranks exchange addresses, the job's key or their
configuration. The places here belong to other libraries: torch's store, jax's store, MPI. Only the
job's processes reach them, so ranks may exchange the job's key there.

A rank polls for the values of the others instead of blocking in the library: Ctrl-C works, and
missing ranks can be named.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..errors import BeladyError

log = logging.getLogger("belady")

#: Missing ranks are logged after so many seconds, then at intervals that double up to the longest,
#: as the native rendezvous does.
_WARN_AFTER = 5.0
_WARN_AT_LEAST_EVERY = 300.0
#: torch's store closes a connection that sends more than 8 MiB at once.
_PIECE = 1 << 20


class Rendezvous(ABC):
    """One rank's access to the rendezvous."""

    #: The place's name in messages.
    place: str
    #: The longest interval of polling. 1,000 ranks then ask a store 4,000 times a second.
    longest_pause = 0.25

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @abstractmethod
    def exchange(self, name: str, mine: bytes, limit: float) -> list[bytes]:
        """Returns what all ranks gave under this name, by rank.

        Raises BeladyError if a rank has given nothing within `limit` seconds.
        """

    def release(self, names: Sequence[str]) -> None:
        """This rank no longer needs the values of these exchanges.

        A place that keeps values may delete those that all ranks have released.
        """

    def reached_by(self) -> str | None:
        """Returns a host that is reached through the job's network, if one is known."""
        return None


class Wait:
    """Polls at growing intervals, logs missing ranks ever less often, and ends with an error."""

    def __init__(self, rendezvous: Rendezvous, name: str, limit: float) -> None:
        self._rendezvous = rendezvous
        self._name = name
        self._limit = limit
        self._began = time.monotonic()
        self._pause = 0.001
        self._warn_at = _WARN_AFTER

    def pause(self, missing: Sequence[int] | None) -> None:
        """Sleeps once. `missing` ranks have given nothing; None if they are not known."""
        waited = time.monotonic() - self._began
        if waited >= self._limit:
            raise BeladyError(self._sentence(missing))
        if waited >= self._warn_at:
            self._warn_at = waited + min(waited, _WARN_AT_LEAST_EVERY)
            log.warning(
                "belady has been waiting for %.0f s for %s of %d to come to %s at %s; every rank "
                "has to make the same loaders, and one that only some ranks make takes peers=None",
                waited,
                ranks(missing),
                self._rendezvous.size,
                self._name,
                self._rendezvous.place,
            )
        time.sleep(min(self._pause, self._limit))
        self._pause = min(2 * self._pause, self._rendezvous.longest_pause)

    def needs_missing(self) -> bool:
        """Whether the next pause logs or raises, and so needs the missing ranks."""
        waited = time.monotonic() - self._began
        return waited >= min(self._limit, self._warn_at)

    def _sentence(self, missing: Sequence[int] | None) -> str:
        return (
            f"{ranks(missing)} of {self._rendezvous.size} did not come to "
            f"{self._rendezvous.place} to exchange {self._name} within {self._limit:g} s: see "
            "whether they run, or whether the world is smaller; every rank has to make the same "
            "loaders (peers=None makes one that works alone)"
        )


def ranks(numbers: Sequence[int] | None) -> str:
    """Returns "rank 3" or "ranks 1, 2"."""
    if numbers is None:
        return "some ranks"
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {', '.join(map(str, numbers))}"


class Store(Rendezvous):
    """A rendezvous at a store of keys and values.

    Stores refuse large values, so a value is one or several pieces. The number of pieces is written
    last: a rank that finds it finds all pieces.
    """

    def exchange(self, name: str, mine: bytes, limit: float) -> list[bytes]:
        self._give(f"{name}/{self.rank}", mine)
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        wait = Wait(self, name, limit)
        while not self.has_all(keys):
            wait.pause(self._missing(keys) if wait.needs_missing() else None)
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
            return  # the rank failed before this exchange
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
        # One after another: a store limits what it sends at once.
        return b"".join(self.get([f"{key}/{number}"])[0] for number in range(int(head[1:])))

    def _missing(self, keys: Sequence[str]) -> list[int]:
        return [rank for rank, key in enumerate(keys) if not self.has_all([key])]

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Sets a key, or replaces its value."""

    @abstractmethod
    def has_all(self, keys: Sequence[str]) -> bool:
        """Whether all keys are set, without waiting."""

    @abstractmethod
    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the values of keys that are set."""

    @abstractmethod
    def add_one(self, key: str) -> int:
        """Adds one to a counter that begins at 0; returns the sum."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Deletes a key, if it is set."""
