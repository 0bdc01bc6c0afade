"""Belady feeds training: from the shuffle's seed it knows which sample is read when, and keeps
the right bytes in RAM or on a local disk.

>>> import belady
>>> data = belady.open(photos)
>>> loader = belady.DataLoader(data, batch_size=16, shuffle=True, seed=0, cache=["ram:1MiB"])
>>> for epoch in range(3):
...     for samples, labels in loader:
...         pass

`belady.torch`, `belady.jax` and `belady.tensorflow` give tensors. Nothing of these is imported
before you do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._native import __version__
from . import few  # first: what it holds back is told when all others have ended
from .batch import Batch, Sample
from .dataset import Dataset, flat, folder, join, open, records, tfrecord, webdataset
from .engine import Engine
from .errors import BeladyError, DecodeError, SampleError, StalledError, WorkerError
from .job import Job
from .loader import DataLoader
from .mixing import Mixture, Weighted
from .peers import Cluster, cluster
from .stats import Stats
from .subsets import subset
from . import transforms

__all__ = [
    "Batch",
    "BeladyError",
    "Cluster",
    "DataLoader",
    "Dataset",
    "DecodeError",
    "Engine",
    "Job",
    "Mixture",
    "Sample",
    "SampleError",
    "StalledError",
    "Stats",
    "Weighted",
    "WorkerError",
    "__version__",
    "cluster",
    "flat",
    "folder",
    "join",
    "open",
    "records",
    "subset",
    "tfrecord",
    "transforms",
    "webdataset",
]

few.install("belady")

if not TYPE_CHECKING:  # for which any name would be good

    def __getattr__(name: str) -> Any:
        """`belady.torch` and its kin, which import what they are named after, when asked for."""
        if name in ("torch", "jax", "tensorflow"):
            import importlib

            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
