"""What several tests do with loaders."""

from __future__ import annotations

from typing import Any

import belady

#: For programs that fork with threads running, as tests do on purpose: from 3.12 on Python warns of it.
MAY_FORK = ("-W", "ignore:This process (pid=:DeprecationWarning")


def make(data: belady.Dataset | belady.Mixture, **arguments: Any) -> belady.DataLoader:
    """A loader with a small cache and buffer, and seed 0: two of them give the same."""
    arguments.setdefault("seed", 0)
    if "engine" not in arguments:
        arguments.setdefault("cache", "ram:100KB")
    arguments.setdefault("staging", "2MiB")
    return belady.DataLoader(data, **arguments)


def as_by_default(data: belady.Dataset | belady.Mixture, **arguments: Any) -> belady.DataLoader:
    """A loader that follows torch's seed, as one without `seed` does."""
    return make(data, **({"seed": "torch"} | arguments))


def ids(loader: belady.DataLoader) -> list[list[int]]:
    """One epoch, as lists of ids."""
    return [list(batch.ids) for batch in loader]


def read_all(batch: belady.Batch) -> list[bytes]:
    return [bytes(sample) for sample in batch.samples]
