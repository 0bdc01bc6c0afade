"""Belady feeds training jobs: it knows from the shuffle's seed which sample is read when, and keeps
the right bytes in RAM or on a local disk.

>>> import belady
>>> data = belady.open(photos)
>>> loader = belady.DataLoader(data, batch_size=16, shuffle=True, seed=0, cache=["ram:1MiB"])
>>> for epoch in range(3):
...     for samples, labels in loader:
...         pass

`belady.torch`, `belady.jax` and `belady.tensorflow` make tensors; they are imported when you use
them. `belady.transforms` has the transforms, `belady.errors` the exceptions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import _log  # first: its exit handler runs last

# isort: split
from . import transforms
from ._cluster.cluster import Cluster, cluster
from ._configuration.policy import Policy
from ._dataset import dataset as _dataset, manifest as _manifest
from ._dataset.dataset import Dataset, flat, folder, join, open, records, tfrecord, webdataset
from ._dataset.subset import subset
from ._engine import stats as _stats
from ._engine.engine import Engine
from ._engine.stats import Stats
from ._loader.job import Job
from ._loader.loader import DataLoader
from ._native import __version__
from ._orders import weighted as _weighted
from ._orders.weighted import Mixture, Weighted
from ._pipeline import batch as _batch
from ._pipeline.batch import Batch, Sample
from .errors import BeladyError, DecodeError, SampleError, StalledError, WorkerError

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
    "Policy",
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

_log.limit("belady")

# Classes show, and pickles name, the module that users import them from.
for _name in __all__:
    _shown = globals()[_name]
    if isinstance(_shown, type) and _shown.__module__.startswith("belady._"):
        _shown.__module__ = "belady"

# Pickles of version 0.1 name these modules.
sys.modules |= {
    "belady.batch": _batch,
    "belady.dataset": _dataset,
    "belady.manifest": _manifest,
    "belady.mixing": _weighted,
    "belady.stats": _stats,
}

if not TYPE_CHECKING:  # a type checker would then accept any name

    def __getattr__(name: str) -> Any:
        """Imports `belady.torch`, `belady.jax` or `belady.tensorflow` when it is first used."""
        if name in ("torch", "jax", "tensorflow"):
            import importlib

            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
