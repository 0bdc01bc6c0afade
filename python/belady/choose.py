"""From arguments to an order: what `shuffle`, `sampler`, `batch_sampler`, `generator`, `seed` mean.

| arguments | order |
|---|---|
| `shuffle=True`, one process | torch's `DataLoader(shuffle=True, generator=g)`; g is `generator`, or seeded with `seed` |
| `shuffle=True`, several | torch's `DistributedSampler(seed=seed)`: seed + epoch |
| `shuffle="permutation"` | a permutation that needs no memory, for billions of samples |
| `shuffle=False` | by id; several processes take turns, as `DistributedSampler(shuffle=False)` deals |
| `sampler=` torch's `RandomSampler(generator=g)`, `SequentialSampler`, `DistributedSampler` | theirs, done natively |
| `sampler=belady.Weighted(...)`, `data=belady.Mixture(...)` | by weight |
| any other `sampler` or `batch_sampler` | it is run, one epoch ahead |
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from . import _native, arguments, generator as twister
from .distributed import World
from .generated import GeneratorOrder
from .mixing import Mixture, Weighted
from .orders import NumberedOrder, Order, TorchDistributedOrder
from .sampled import SampledOrder

SCHEMES = ("uniform", "contiguous", "whole", "imbalanced")
SHUFFLES = ("torch", "permutation")


@dataclass(frozen=True)
class Choice:
    """The arguments that decide about an order, checked."""

    samples: int
    batch: int
    drop_last: bool
    shuffle: str | None
    sampler: Any
    batch_sampler: Any
    generator: Any
    seed: int
    scheme: str
    world: World
    mixture: Mixture | None
    #: Batches that torch's worker processes would ask for ahead; 0 without workers.
    asked_ahead: int = 0
    persistent: bool = False

    @property
    def length(self) -> int | None:
        """Samples of an epoch on this rank, where that is known before it is run."""
        whole = self.samples
        if self.mixture is not None:
            whole = len(self.mixture)
        elif isinstance(self.sampler, Weighted):
            whole = len(self.sampler)
        return -(-whole // self.world.size)

    def order(self, kind: str | None = None) -> Order:
        """The order; `kind` is that of a checkpoint, which may be of another world size."""
        if self.mixture is not None:
            native = self.mixture.orders(**self._dealt())
            return self._numbered(native, kind="mixture", **self.mixture.identity)
        if isinstance(self.sampler, Weighted):
            native = self.sampler.orders(self.samples, **self._dealt())
            return self._numbered(native, kind="weighted", **self.sampler.identity)
        if self.batch_sampler is not None:
            return self._run(self.batch_sampler, None)
        if self.sampler is not None:
            return self._recognised() or self._run(self.sampler, self.batch)
        if self.shuffle == "torch" and (kind or self._kind()) == "generator":
            return self._generated(self.generator, "persistent-loader" if self.persistent else "loader")
        return self._distributed()

    def _kind(self) -> str:
        return "generator" if self.world.size == 1 else "distributed"

    def _dealt(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "seed": self.seed,
            "rank": self.world.rank,
            "ranks": self.world.size,
            "drop_last": self.drop_last,
        }

    def _numbered(self, native: _native.Orders, **identity: Any) -> Order:
        return NumberedOrder(native, self._base_seed(), seed=self.seed, **identity)

    def _distributed(self) -> Order:
        order = self.shuffle or "sequential"
        native = _native.Orders.distributed(
            samples=self.samples, order=order, scheme=self.scheme, **self._dealt()
        )
        kind = {"torch": "distributed"}.get(order, order)
        if order == "sequential":
            return NumberedOrder(native, self._base_seed(), kind=kind, scheme=self.scheme)
        return self._numbered(native, kind=kind, scheme=self.scheme)

    def _generated(self, generator: Any, draws: str) -> Order:
        alone = draws == "sampler"
        mine = self.sampler is None
        return GeneratorOrder(
            samples=self.samples,
            batch=self.batch,
            drop_last=self.drop_last,
            seed=self.seed,
            generator=generator,
            draws=draws,
            asked_ahead=self.asked_ahead,
            base_seed=self._base_seed() if alone else lambda: None,
            rank=self.world.rank if mine else 0,
            ranks=self.world.size if mine else 1,
        )

    def _run(self, sampler: Iterable[Any], batch: int | None) -> Order:
        return SampledOrder(
            sampler,
            samples=self.samples,
            batch=batch,
            drop_last=self.drop_last,
            base_seed=self._base_seed(),
        )

    def _recognised(self) -> Order | None:
        """One of torch's samplers, exactly (a subclass may do as it likes), over all samples."""
        data: Any = sys.modules.get("torch.utils.data")
        if data is None:
            return None
        sampler, kind = self.sampler, type(self.sampler)
        if kind is data.SequentialSampler and len(sampler) == self.samples:
            return replace(self, sampler=None, shuffle=None, world=World())._distributed()
        if kind is data.RandomSampler and self._plain(sampler):
            draws = "sampler"
            if sampler.generator is self.generator:
                draws = "persistent-loader" if self.persistent else "loader"
            return self._generated(sampler.generator, draws)
        if kind is data.DistributedSampler and len(sampler.dataset) == self.samples:
            return self._torch_distributed(sampler)
        return None

    def _plain(self, sampler: Any) -> bool:
        return (
            sampler.generator is not None
            and not sampler.replacement
            and sampler.num_samples == len(sampler.data_source) == self.samples
        )

    def _torch_distributed(self, sampler: Any) -> Order:
        native = _native.Orders.distributed(
            samples=self.samples,
            batch=self.batch,
            order="torch" if sampler.shuffle else "sequential",
            seed=sampler.seed,
            rank=sampler.rank,
            ranks=sampler.num_replicas,
            drop_last=self.drop_last,
            sampler_drop_last=sampler.drop_last,
        )
        return TorchDistributedOrder(
            sampler,
            native,
            self._base_seed(),
            kind="distributed" if sampler.shuffle else "sequential",
            seed=sampler.seed,
            scheme="uniform",
        )

    def _base_seed(self) -> Callable[[], None]:
        return _BaseSeed(self.generator, self.persistent)


class _BaseSeed:
    """Draws the number that torch's `DataLoader` draws when an epoch begins, and throws it away.

    torch seeds worker processes with it. Drawing it too leaves the generator, which may be the
    default one that dropout uses, where it would be with torch's loader.
    """

    def __init__(self, generator: Any, once: bool) -> None:
        self._generator = generator
        self._once = once
        self._drawn = False

    def __call__(self) -> None:
        if self._drawn and self._once:
            return
        self._drawn = True
        torch: Any = sys.modules.get("torch")
        if self._generator is not None:
            state = twister.read(self._generator).skip(twister.BASE_SEED_WORDS)
            twister.write(self._generator, state)
        elif torch is not None and hasattr(torch, "empty"):
            torch.empty((), dtype=torch.int64).random_()


def checked(
    *,
    samples: int,
    batch_size: object,
    shuffle: object,
    sampler: Any,
    batch_sampler: Any,
    drop_last: object,
    generator: Any,
    seed: object,
    scheme: object,
    world: World,
    mixture: Mixture | None,
    asked_ahead: int,
    persistent: bool,
) -> Choice:
    """The choice, or a sentence about what does not go together."""
    how = _shuffle(shuffle)
    drop = arguments.flag(drop_last, "drop_last")
    if batch_sampler is not None:
        if batch_size != 1 or how is not None or sampler is not None or drop:
            raise ValueError(
                "batch_sampler makes the batches, so batch_size, shuffle, sampler and drop_last "
                "cannot be given with it"
            )
        batch_sampler, sampler, batch_size, drop = _unwrapped(batch_sampler)
    if batch_size is None:
        raise ValueError(
            "batch_size=None (samples one by one) is not supported; use batch_size=1, or data[i]"
        )
    if sampler is not None and how is not None:
        raise ValueError("sampler decides the order, so shuffle cannot be given with it")
    if mixture is not None and (sampler is not None or batch_sampler is not None):
        raise ValueError("a Mixture decides the order, so no sampler can be given with it")
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None and not (hasattr(given, "__iter__") or isinstance(given, Weighted)):
            raise TypeError(f"{name} has to be something to iterate, not {type(given).__name__}")
    share = arguments.choice(scheme, "scheme", SCHEMES)
    if share != "uniform" and not (mixture is sampler is batch_sampler is None):
        raise ValueError(
            f'scheme="{share}" shares out an order of the loader\'s own; leave it out where a '
            "sampler or a Mixture decides"
        )
    if generator is not None:
        twister.check(generator)
        if how == "torch" and world.size > 1:
            raise ValueError(
                "with several processes the order comes from seed + epoch, as DistributedSampler "
                "makes it, and not from a generator; pass seed instead of generator"
            )
    return Choice(
        samples=samples,
        batch=arguments.count(batch_size, "batch_size", least=1),
        drop_last=drop,
        shuffle=how,
        sampler=sampler,
        batch_sampler=batch_sampler,
        generator=generator,
        seed=_seed(seed),
        scheme=share,
        world=world,
        mixture=mixture,
        asked_ahead=asked_ahead,
        persistent=persistent,
    )


def _shuffle(value: object) -> str | None:
    if isinstance(value, str):
        return arguments.choice(value, "shuffle", SHUFFLES)
    if value is None:
        return None
    return "torch" if arguments.flag(value, "shuffle") else None


def _seed(value: object) -> int:
    return arguments.count(value, "seed", most=2**64 - 1)


def _unwrapped(batch_sampler: Any) -> tuple[Any, Any, int, bool]:
    """torch's own BatchSampler is a sampler, a batch size and drop_last."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and type(batch_sampler) is data.BatchSampler:
        return None, batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    return batch_sampler, None, 1, False
