"""Rendezvous at the store of `jax.distributed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .rendezvous import Store
from .world import jax_state


class JaxStore(Store):
    """The coordinator's store, under the prefix "belady/"."""

    def __init__(self, client: Any, rank: int, size: int, host: str | None) -> None:
        super().__init__(rank, size)
        self.place = "the store of jax.distributed"
        self._client = client
        self._host = host
        #: Keys that were found, of exchanges that this rank has not released.
        self._seen: set[str] = set()

    def set(self, key: str, value: bytes) -> None:
        self._client.key_value_set_bytes(f"belady/{key}", value, allow_overwrite=True)

    def has_all(self, keys: Sequence[str]) -> bool:
        return all(key in self._seen or self._look_for(key) for key in keys)

    def _look_for(self, key: str) -> bool:
        try:
            self._client.key_value_try_get_bytes(f"belady/{key}")
        except Exception as error:  # jax has no type for it
            if "NOT_FOUND" in str(error):
                return False
            raise
        self._seen.add(key)
        return True

    def get(self, keys: Sequence[str]) -> list[bytes]:
        return [bytes(self._client.key_value_try_get_bytes(f"belady/{key}")) for key in keys]

    def add_one(self, key: str) -> int:
        return int(self._client.key_value_increment(f"belady/{key}", 1))

    def delete(self, key: str) -> None:
        self._client.key_value_delete(f"belady/{key}")
        self._seen.discard(key)

    def release(self, names: Sequence[str]) -> None:
        self._seen -= {f"{name}/{rank}" for name in names for rank in range(self.size)}
        # Older clients cannot count, so values stay in the store until the job ends.
        if hasattr(self._client, "key_value_increment"):
            super().release(names)

    def reached_by(self) -> str | None:
        return self._host


def of_jax() -> JaxStore | None:
    """Returns the store of `jax.distributed`, if the program has initialised it."""
    known = jax_state()
    if known is None or known.client is None:
        return None
    host = (known.coordinator_address or "").rpartition(":")[0] or None
    return JaxStore(known.client, known.process_id, known.num_processes, host)
