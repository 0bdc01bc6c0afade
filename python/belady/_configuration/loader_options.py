"""The arguments of a `DataLoader`, as written and as checked.

`LoaderArguments` has them as the user wrote them. `Options.of` checks those that are not about the
order; `_orders/selection.py` checks the others. Arguments of torch that belady does not need are
accepted and checked, so that a script runs unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from .. import _native
from .._cluster.world import World
from .._dataset.dataset import Dataset
from .._pipeline.feeds import decode_threads
from .._pipeline.fields import Transform
from .._pipeline.workers import context_of
from . import arguments, memory
from .policy import policy

if TYPE_CHECKING:
    from .._device.placement import Placement

ON_ERROR = ("raise", "skip", "replace")
#: The staging buffers of a node's ranks together, by default; the engine's own default.
_STAGING = 512 << 20
#: How much of the next epoch is staged at most before it begins.
_NEXT_EPOCH = 32 << 20
#: And at most this part of the dataset: a run of ten epochs loses little if it is not read.
_NEXT_EPOCH_PART = 20
#: Batches that are decoded ahead in threads, and by each worker process: torch's default.
_PREFETCH = 2
#: Datasets with fewer samples are searched for their largest batch within milliseconds.
_QUICKLY_SEARCHED = 200_000


@dataclass(frozen=True)
class LoaderArguments:
    """The arguments of a `DataLoader` as the user wrote them, unchecked."""

    dataset: Any
    batch_size: Any
    shuffle: Any
    sampler: Any
    batch_sampler: Any
    num_workers: Any
    collate_fn: Any
    pin_memory: Any
    drop_last: Any
    timeout: Any
    worker_init_fn: Any
    multiprocessing_context: Any
    generator: Any
    prefetch_factor: Any
    persistent_workers: Any
    pin_memory_device: Any
    in_order: Any
    seed: Any
    epochs: Any
    cache: Any
    engine: Any
    peers: Any
    key: Any
    decode: Any
    transform: Any
    labels: Any
    device: Any
    memory_format: Any
    num_threads: Any
    rank: Any
    world_size: Any
    scheme: Any
    shard_sampler: Any
    staging: Any
    next_epoch: Any
    policy: Any
    on_error: Any
    max_failures: Any
    retries: Any
    read_timeout: Any
    metrics: Any
    cache_share: Any
    writable: Any
    stall_after: Any
    trace: Any

    @property
    def requested_ahead(self) -> int:
        """Batches that torch's workers would request from the sampler ahead of delivery."""
        workers = arguments.count(self.num_workers, "num_workers")
        return workers * _prefetch(self.prefetch_factor)


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
    #: Whether two of the largest batches may enlarge the buffer: the user named no size.
    staging_grows: bool
    #: Bytes of the next epoch that are staged before it begins, if `epochs` is not given; None for
    #: the default.
    next_epoch: int | None
    #: With its options, as `_configuration/policy.py` writes it: the same text is the same policy.
    policy: str
    on_error: str
    max_failures: int | None
    writable: bool
    cache_share: float
    trace: str | None

    @classmethod
    def of(cls, given: LoaderArguments, world: World) -> Options:
        """Checks the arguments. Raises for the first one that is wrong."""
        workers = arguments.count(given.num_workers, "num_workers")
        arguments.flag(given.persistent_workers, "persistent_workers")
        arguments.flag(given.in_order, "in_order")
        if not isinstance(given.pin_memory_device, str):
            raise TypeError('pin_memory_device has to be text such as "cuda"')
        on_gpu = isinstance(given.decode, str) and given.decode == "gpu"
        decode, whole = _decode(None if on_gpu else given.decode, given.transform)
        placement, transform = _placed(given, whole, on_gpu)
        collate_fn = arguments.function(given.collate_fn, "collate_fn", "a list of samples")
        _refuse_with_bytes(collate_fn, given)
        on_error = arguments.choice(given.on_error, "on_error", ON_ERROR)
        max_failures = _optional(given.max_failures, "max_failures")
        if max_failures is not None and on_error == "raise":
            raise ValueError(
                'max_failures is for on_error="skip" and "replace"; with "raise" the first failure '
                "is an error"
            )
        return cls(
            decode=decode,
            transform=transform,
            placement=placement,
            collate_fn=collate_fn,
            workers=workers,
            threads=decode_threads(
                arguments.threads(given.num_threads, "num_threads"),
                world.local_size,
                0 if placement is None else placement.spared_cores,
            ),
            prefetch=_prefetch(given.prefetch_factor),
            context=_context(given.multiprocessing_context, workers),
            worker_init_fn=arguments.function(
                given.worker_init_fn, "worker_init_fn", "the worker's number"
            ),
            pin_memory=_pin_memory(given.pin_memory),
            timeout=arguments.seconds(given.timeout, "timeout"),
            stall_after=arguments.seconds(given.stall_after, "stall_after", zero=False),
            epochs=_optional(given.epochs, "epochs", least=1),
            staging=staging_of_rank(given.staging, world.local_size),
            staging_grows=given.staging is None,
            next_epoch=None
            if given.next_epoch is None
            else arguments.size(given.next_epoch, "next_epoch"),
            policy=policy(given.policy),
            on_error=on_error,
            max_failures=max_failures,
            writable=not on_gpu
            and _writable(given.writable, decode, transform, collate_fn, workers),
            cache_share=arguments.share(given.cache_share, "cache_share"),
            trace=_trace(given.trace),
        )

    def fitted(self, data: Dataset, batch: int | None) -> Options:
        """Returns the options with a staging buffer that holds two batches of at most `batch`
        samples.

        Raises if the user named a smaller one. The sizes of a large dataset are not searched here;
        the engine enlarges the default buffer then.
        """
        if batch is None or (self.staging_grows and len(data) >= _QUICKLY_SEARCHED):
            return self
        needed = data.native.staging_needed(batch)
        if self.staging < needed and not self.staging_grows:
            raise ValueError(
                f"staging of {_native.format_size(self.staging)} is too small: two of the largest "
                f"batches need {_native.format_size(needed)} ({needed} bytes); make it larger, or "
                "batch_size smaller"
            )
        return replace(self, staging=max(self.staging, needed))

    def staged_ahead(self, data: Dataset) -> int | None:
        """Returns the bytes of an epoch that are staged before it begins; None for all of it."""
        if self.epochs is not None:
            return None  # it is certain to be read
        if self.next_epoch is not None:
            return self.next_epoch
        return min(_NEXT_EPOCH, data.total_bytes // _NEXT_EPOCH_PART)

    @property
    def works(self) -> bool:
        """Whether batches are more than the bytes of their samples."""
        return self.decode is not None or self.transform is not None or self.collate_fn is not None

    @property
    def native(self) -> bool:
        """Whether native threads do all the work; they only read the bytes."""
        if self.placement is not None and self.placement.gpu_decode is not None:
            return True
        return self.transform is not None and self.transform.native

    @property
    def processes(self) -> bool:
        """Whether worker processes do the work."""
        takes_batch = getattr(self.collate_fn, "takes_batch", False)
        return self.workers > 0 and self.works and not takes_batch and not self.native


def _placed(
    given: LoaderArguments, transform: Transform | None, on_gpu: bool
) -> tuple[Placement | None, Transform | None]:
    """Returns where batches go, and the part of the transform that is done before."""
    if given.device is None and given.memory_format is None and not on_gpu:
        return None, transform
    from .._device.placement import placed

    return placed(
        given.device,
        given.memory_format,
        transform,
        on_gpu=on_gpu,
        collates=given.collate_fn is not None,
    )


def _decode(
    decode: object, transform: object
) -> tuple[Callable[..., Any] | None, Transform | None]:
    if transform is None:
        return arguments.function(decode, "decode", "a sample's bytes and its label"), None
    if decode is not None:
        raise ValueError(
            "decode and transform both say what becomes of a sample; put the function into the "
            "transform: transform=[function, ...]"
        )
    return None, Transform(transform)


def _refuse_with_bytes(collate_fn: object, given: LoaderArguments) -> None:
    """Raises if a collate function that takes bytes and labels would not get them."""
    if not getattr(collate_fn, "takes_batch", False):
        return
    for name in ("decode", "transform", "labels"):
        if getattr(given, name) is not None:
            raise ValueError(
                f"collate_fn {getattr(collate_fn, '__name__', collate_fn)} takes bytes and labels "
                f"as they are; leave {name} out, or collate what {name} returns"
            )


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
        raise ValueError(
            "pin_memory=True pins torch's tensors; import torch first, or leave it out"
        )
    return wanted


def staging_of_rank(value: object, local_ranks: int) -> int:
    """Returns the staging buffer of one rank: as named, or its part of the node's default."""
    if value is None:
        return min(_STAGING, max(1 << 20, memory.available() // 4)) // local_ranks
    staging = arguments.size(value, "staging")
    if staging == 0:
        raise ValueError("staging is zero, and has to hold two batches; make it larger")
    return staging


def _trace(value: object) -> str | None:
    if value is None:
        return None
    path = arguments.path(value, "trace")
    folder = os.path.dirname(os.path.abspath(path))
    writable = os.access(path if os.path.exists(path) else folder, os.W_OK)
    if os.path.isdir(path) or not writable:
        raise ValueError(f"trace: {path} cannot be written; name a file in a folder of yours")
    return path


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
    """Whether a framework is imported whose tensors ignore that memory is read-only."""
    return any(name in sys.modules for name in ("torch", "jax", "tensorflow"))
