"""The arguments of a `DataLoader` that are not about the order, checked.

Arguments that torch has and belady does not need are accepted, checked, and said to be so here,
so that a script need not be changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from . import arguments, memory
from .dataset import Dataset
from .distributed import World
from .engine import auto
from .feed import decode_threads
from .fields import Transform
from .workers import context_of

if TYPE_CHECKING:
    from .device.placement import Placement

POLICIES = ("belady", "nopfs", "staging", "naive", "monarch", "lru", "lobster")
ON_ERROR = ("raise", "skip", "replace")
#: The staging buffers of a node's ranks together, where none is named; the engine's own default.
_STAGING = 512 << 20
#: Enough to go on with at once when the next epoch begins, and little for what may never be read.
_NEXT_EPOCH = 32 << 20
#: And this part of the dataset at most, so that reading it in vain costs a run of ten epochs little.
_NEXT_EPOCH_PART = 20
#: Batches that are decoded ahead in threads, and by each worker process: torch's number.
_PREFETCH = 2
#: Samples whose sizes are looked through in no time.
_SOON_LOOKED_THROUGH = 200_000


@dataclass(frozen=True)
class Options:
    """How batches are made and delivered."""

    decode: Callable[..., Any] | None
    transform: Transform | None
    placement: Placement | None
    collate_fn: Callable[..., Any] | None
    workers: int
    threads: int
    prefetch: int
    context: BaseContext | None
    worker_init_fn: Callable[[int], Any] | None
    pin_memory: bool
    timeout: float
    stall_after: float
    epochs: int | None
    staging: int
    #: Whether two of the largest batches may make it larger: none was named.
    staging_grows: bool
    #: Bytes of the next epoch that are staged before it begins, where `epochs` is not known; None
    #: is a part of the dataset.
    next_epoch: int | None
    policy: str
    on_error: str
    max_failures: int | None
    writable: bool
    cache_share: float
    trace: str | None

    @property
    def works(self) -> bool:
        """Whether there is something to do with the bytes."""
        return self.decode is not None or self.transform is not None or self.collate_fn is not None

    @property
    def native(self) -> bool:
        """Whether native threads do all of it; they only read the bytes."""
        if self.placement is not None and self.placement.gpu_decode is not None:
            return True
        return self.transform is not None and self.transform.native

    @property
    def processes(self) -> bool:
        """Whether worker processes do it."""
        takes_batch = getattr(self.collate_fn, "takes_batch", False)
        return self.workers > 0 and self.works and not takes_batch and not self.native


def checked(given: dict[str, Any], world: World) -> Options:
    """The options, or a sentence about the first that is wrong."""
    workers = arguments.count(given["num_workers"], "num_workers")
    arguments.flag(given["persistent_workers"], "persistent_workers")
    arguments.flag(given["in_order"], "in_order")
    if not isinstance(given["pin_memory_device"], str):
        raise TypeError('pin_memory_device has to be text such as "cuda"')
    on_gpu = isinstance(given["decode"], str) and given["decode"] == "gpu"
    decode, whole = _decode(None if on_gpu else given["decode"], given["transform"])
    placement, transform = _placed(given, whole, on_gpu)
    collate_fn = arguments.function(given["collate_fn"], "collate_fn", "a list of samples")
    _refuse_with_bytes(collate_fn, given)
    on_error = arguments.choice(given["on_error"], "on_error", ON_ERROR)
    max_failures = _optional(given["max_failures"], "max_failures")
    if max_failures is not None and on_error == "raise":
        raise ValueError(
            'max_failures bounds what on_error="skip" or "replace" puts up with; '
            'with "raise" the first failure is an error'
        )
    return Options(
        decode=decode,
        transform=transform,
        placement=placement,
        collate_fn=collate_fn,
        workers=workers,
        threads=decode_threads(
            auto(given["num_threads"], "num_threads"),
            world.local_size,
            0 if placement is None else placement.spared_cores,
        ),
        prefetch=_prefetch(given["prefetch_factor"]),
        context=_context(given["multiprocessing_context"], workers),
        worker_init_fn=arguments.function(
            given["worker_init_fn"], "worker_init_fn", "the worker's number"
        ),
        pin_memory=_pin_memory(given["pin_memory"]),
        timeout=arguments.seconds(given["timeout"], "timeout"),
        stall_after=arguments.seconds(given["stall_after"], "stall_after", zero=False),
        epochs=_optional(given["epochs"], "epochs", least=1),
        staging=staging_of_rank(given["staging"], world.local_size),
        staging_grows=given["staging"] is None,
        next_epoch=None
        if given["next_epoch"] is None
        else arguments.size(given["next_epoch"], "next_epoch"),
        policy=arguments.choice(given["policy"], "policy", POLICIES),
        on_error=on_error,
        max_failures=max_failures,
        writable=not on_gpu and _writable(given["writable"], decode, transform, collate_fn, workers),
        cache_share=arguments.share(given["cache_share"], "cache_share"),
        trace=_trace(given["trace"]),
    )


def _placed(
    given: dict[str, Any], transform: Transform | None, on_gpu: bool
) -> tuple[Placement | None, Transform | None]:
    """Where batches go, and what of the transform is done before."""
    if given["device"] is None and given["memory_format"] is None and not on_gpu:
        return None, transform
    from .device.placement import placed

    return placed(
        given["device"],
        given["memory_format"],
        transform,
        on_gpu=on_gpu,
        collates=given["collate_fn"] is not None,
    )


def _decode(
    decode: object, transform: object
) -> tuple[Callable[..., Any] | None, Transform | None]:
    """Who makes something of a sample's bytes: a function, or a transform."""
    if transform is None:
        return arguments.function(decode, "decode", "a sample's bytes and its label"), None
    if decode is not None:
        raise ValueError(
            "decode and transform both say what becomes of a sample; a function may stand in the "
            "transform: transform=[function, ...]"
        )
    return None, Transform(transform)


def _refuse_with_bytes(collate_fn: object, given: dict[str, Any]) -> None:
    """Some collate functions take bytes as they are, with the dataset's own labels."""
    if not getattr(collate_fn, "takes_batch", False):
        return
    for name in ("decode", "transform", "labels"):
        if given[name] is not None:
            raise ValueError(
                f"collate_fn {getattr(collate_fn, '__name__', collate_fn)} takes bytes and labels "
                f"as they are; leave {name} out, or collate what {name} gives"
            )


def asked_ahead(given: dict[str, Any]) -> int:
    """Batches that torch's workers would ask the sampler for ahead of delivery."""
    workers = arguments.count(given["num_workers"], "num_workers")
    return workers * _prefetch(given["prefetch_factor"])


def _prefetch(value: object) -> int:
    if value is None:
        return _PREFETCH
    return max(1, arguments.count(value, "prefetch_factor"))


def _context(value: object, workers: int) -> BaseContext | None:
    if workers == 0 and value is None:
        return None
    return context_of(value)


def _optional(value: object, name: str, *, least: int = 0) -> int | None:
    return None if value is None else arguments.count(value, name, least=least)


def _pin_memory(value: object) -> bool:
    wanted = arguments.flag(value, "pin_memory")
    if wanted and "torch" not in sys.modules:
        raise ValueError("pin_memory=True pins torch's tensors; import torch first, or leave it out")
    return wanted


def staging_of_rank(value: object, local_ranks: int) -> int:
    """The staging buffer of one of a node's ranks: as it was named, or its part of the node's."""
    if value is None:
        return min(_STAGING, max(1 << 20, memory.available() // 4)) // local_ranks
    staging = arguments.size(value, "staging")
    if staging == 0:
        raise ValueError("staging has to have room for two batches; it is zero")
    return staging


def _trace(value: object) -> str | None:
    if value is None:
        return None
    path = arguments.path(value, "trace")
    folder = os.path.dirname(os.path.abspath(path))
    writable = os.access(path if os.path.exists(path) else folder, os.W_OK)
    if os.path.isdir(path) or not writable:
        raise ValueError(f"trace: {path} cannot be written; name a file in a folder that is yours")
    return path


def start_of_next(options: Options, data: Dataset) -> int | None:
    """Bytes of an epoch that are staged before it begins, beside two batches; None for all of it."""
    if options.epochs is not None:
        return None  # it is known that it will be read
    if options.next_epoch is not None:
        return options.next_epoch
    return min(_NEXT_EPOCH, data.total_bytes // _NEXT_EPOCH_PART)


def with_room(options: Options, data: Dataset, batch: int | None) -> Options:
    """The options, with a staging buffer that has room for two batches; one that was named and has not is
    refused. Looking through the sizes of a large dataset takes a while, so a default size is
    left to the engine there."""
    if batch is None or (options.staging_grows and len(data) >= _SOON_LOOKED_THROUGH):
        return options
    needed = data.native.staging_needed(batch)
    if options.staging < needed and not options.staging_grows:
        raise ValueError(
            f"staging of {arguments.shown_size(options.staging)} is too small: two of the largest "
            f"batches need {arguments.shown_size(needed)} ({needed} bytes); make it larger, or "
            "batch_size smaller"
        )
    return replace(options, staging=max(options.staging, needed))


def _writable(
    value: object,
    decode: object,
    transform: Transform | None,
    collate_fn: object,
    workers: int,
) -> bool:
    if value is not None:
        return arguments.flag(value, "writable")
    if transform is not None:
        return not transform.native
    return decode is not None or (collate_fn is not None and workers > 0) or frameworks()


def frameworks() -> bool:
    """Whether something is imported whose tensors ignore that memory is read-only."""
    return any(name in sys.modules for name in ("torch", "jax", "tensorflow"))
