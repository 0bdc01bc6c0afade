"""Rendezvous at a store of `torch.distributed`.

The store of the default process group, if the program has initialised one; else that of torchrun's
agent, which starts before the processes of the job and outlives them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from .rendezvous import Store

#: To connect to the agent's store, which runs already.
_CONNECT = timedelta(seconds=60)


class TorchStore(Store):
    """A store of torch, under the prefix "belady"."""

    def __init__(self, store: Any, rank: int, size: int, place: str, host: str | None) -> None:
        super().__init__(rank, size)
        self.place = place
        self._store = prefixed("belady", store)
        self._host = host

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def has_all(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(list(keys)))

    def get(self, keys: Sequence[str]) -> list[bytes]:
        if len(keys) > 1 and self._store.has_extended_api():
            return [bytes(value) for value in self._store.multi_get(list(keys))]
        return [bytes(self._store.get(key)) for key in keys]

    def add_one(self, key: str) -> int:
        return int(self._store.add(key, 1))

    def delete(self, key: str) -> None:
        # A store that the user wrote may not delete; its values stay until the job ends.
        with contextlib.suppress(RuntimeError):
            self._store.delete_key(key)

    def reached_by(self) -> str | None:
        return self._host


def prefixed(prefix: str, store: Any) -> Any:
    """Returns the part of a store whose keys have the prefix."""
    distributed: Any = sys.modules["torch.distributed"]
    return distributed.PrefixStore(prefix, store)


def of_process_group(environment: Mapping[str, str] = os.environ) -> TorchStore | None:
    """Returns the store of the default process group, if it is initialised."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    # No public function returns it; torch's extensions take it from there.
    store = distributed.distributed_c10d._get_default_store()
    place = "the store of torch.distributed"
    host = environment.get("MASTER_ADDR")
    return TorchStore(store, distributed.get_rank(), distributed.get_world_size(), place, host)


def of_agent(
    rank: int, size: int, environment: Mapping[str, str] = os.environ
) -> TorchStore | None:
    """Returns the store of torchrun's agent, if torchrun launched this process."""
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    try:
        distributed: Any = importlib.import_module("torch.distributed")
    except ImportError:  # torchrun is in another Python environment
        return None
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = distributed.TCPStore(host, port, size, is_master=False, timeout=_CONNECT)
    # The agent keeps its store when it restarts all processes.
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    own = prefixed(f"{run}/{attempt}", store)
    return TorchStore(own, rank, size, f"torchrun's store at {host}:{port}", host)
