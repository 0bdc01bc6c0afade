"""From arguments to an order: what `shuffle`, `sampler`, `batch_sampler`, `generator`, `seed` mean.

| arguments | order |
|---|---|
| `shuffle=True`, one process | torch's `DataLoader(shuffle=True)`, which follows `torch.manual_seed` |
| with `generator` or `seed` | torch's `DataLoader(shuffle=True, generator=g)`; g is `generator`, or seeded with `seed` |
| `shuffle=True`, several | torch's `DistributedSampler(seed=seed)`: seed + epoch |
| `shuffle="permutation"` | a permutation that needs no memory, for billions of samples |
| `shuffle=False` | by id; several processes take turns, as `DistributedSampler(shuffle=False)` deals |
| `sampler=` torch's `RandomSampler(generator=g)`, `SequentialSampler`, `DistributedSampler` | theirs, done natively |
| `sampler=belady.Weighted(...)`, `data=belady.Mixture(...)` | by weight |
| any other `sampler` or `batch_sampler` | it is run, one epoch ahead |

Several processes share out what torch's samplers give that know nothing of ranks: see `dealing`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from . import _native, arguments, generator as twister, with_accelerate
from .dealing import Deal, is_to_be_dealt
from .default_order import DefaultOrder
from .distributed import World
from .generated import GeneratorOrder
from .mixing import Mixture, Weighted
from .orders import NumberedOrder, Order, TorchDistributedOrder
from .sampled import SampledOrder
from .with_accelerate import Padding

SCHEMES = ("uniform", "parts", "contiguous", "whole", "imbalanced")
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
    #: Whether the order comes from torch's default generator where torch's would.
    follows_torch: bool = False
    #: Whether ranks share out what the sampler gives.
    dealt: bool = False
    #: Batches that torch's worker processes would ask for ahead; 0 without workers.
    asked_ahead: int = 0
    persistent: bool = False

    @property
    def length(self) -> int | None:
        """Samples of an epoch on this rank, where that is known before it is run."""
        return -(-self._own_length() // self.world.size)

    def _own_length(self) -> int:
        """Samples of an epoch of the loader's own, on all ranks."""
        if self.mixture is not None:
            return len(self.mixture)
        return len(self.sampler) if isinstance(self.sampler, Weighted) else self.samples

    @property
    def padding(self) -> Padding | None:
        """How an epoch is padded; None where a sampler of the user's may do it unseen."""
        if self.world.size == 1:
            return Padding(0, 0)
        data: Any = sys.modules.get("torch.utils.data")
        if self.batch_sampler is not None:
            return None
        if self.sampler is None or isinstance(self.sampler, Weighted):
            samples, even = self._own_length(), self.scheme in ("uniform", "parts")
        elif data is not None and type(self.sampler) is data.DistributedSampler:
            samples, even = len(self.sampler.dataset), not self.sampler.drop_last
        elif self.dealt and hasattr(self.sampler, "__len__"):
            samples, even = len(self.sampler), True
        else:
            return None
        return Padding(samples, -samples % self.world.size if even else 0)

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
        kind = kind or self._kind()
        if self.shuffle == "torch" and kind == "torch":
            return self._default()
        if self.shuffle == "torch" and kind == "generator":
            return self._generated(self.generator, "persistent-loader" if self.persistent else "loader")
        return self._distributed()

    def _kind(self) -> str:
        if self.world.size > 1:
            return "distributed"
        return "torch" if self.follows_torch and self.generator is None else "generator"

    def _default(self) -> Order:
        deal = Deal(self.world.rank, self.world.size, self.seed, self.world.size > 1)
        return DefaultOrder(
            samples=self.samples,
            batch=self.batch,
            drop_last=self.drop_last,
            persistent=self.persistent,
            deal=deal,
        )

    def _dealt(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "seed": self.seed,
            "rank": self.world.rank,
            "ranks": self.world.size,
            "drop_last": self.drop_last,
        }

    def _numbered(self, native: _native.Orders, **identity: Any) -> Order:
        order = NumberedOrder(native, self._base_seed(), seed=self.seed, **identity)
        order.repeats = identity["kind"] in ("weighted", "mixture")
        return order

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
            deal=Deal(self.world.rank, self.world.size, self.seed, self.dealt),
        )

    def _recognised(self) -> Order | None:
        """One of torch's samplers, exactly (a subclass may do as it likes), over all samples."""
        data: Any = sys.modules.get("torch.utils.data")
        if data is None:
            return None
        sampler, kind = self.sampler, type(self.sampler)
        if kind is data.SequentialSampler and len(sampler) == self.samples:
            world = self.world if self.dealt else World()
            return replace(self, sampler=None, shuffle=None, world=world)._distributed()
        if kind is data.RandomSampler and self._plain(sampler) and self.dealt:
            if sampler.generator is None:  # seed + epoch
                return replace(self, sampler=None, shuffle="torch")._distributed()
            return None
        if kind is data.RandomSampler and self._plain(sampler) and sampler.generator is not None:
            draws = "sampler"
            if sampler.generator is self.generator:
                draws = "persistent-loader" if self.persistent else "loader"
            return self._generated(sampler.generator, draws)
        if kind is data.DistributedSampler and len(sampler.dataset) == self.samples:
            return self._torch_distributed(sampler)
        return None

    def _plain(self, sampler: Any) -> bool:
        return (
            not sampler.replacement
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
    seed: int,
    scheme: object,
    world: World,
    mixture: Mixture | None,
    follows_torch: bool = False,
    shard_sampler: bool | None = None,
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
    share = _scheme(scheme)
    if scheme not in (None, "uniform") and not (mixture is sampler is batch_sampler is None):
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
        seed=seed,
        scheme=share,
        world=world,
        mixture=mixture,
        follows_torch=follows_torch,
        dealt=_dealt(sampler if batch_sampler is None else batch_sampler, shard_sampler, world),
        asked_ahead=asked_ahead,
        persistent=persistent,
    )


def _dealt(sampler: Any, wanted: object, world: World) -> bool:
    if wanted is not None:
        wanted = arguments.flag(wanted, "shard_sampler")
        if sampler is None or isinstance(sampler, Weighted):
            raise ValueError(
                "shard_sampler says whether ranks share out what a sampler of yours gives; an order of "
                "the loader's own is always shared out, so leave it out"
            )
    if sampler is None or isinstance(sampler, Weighted):
        return False
    return is_to_be_dealt(sampler, wanted, world)


def _scheme(value: object) -> str:
    if value is None:
        # Accelerate takes it for granted that what ranks have is the batch, laid end to end.
        return "parts" if with_accelerate.in_use() else "uniform"
    return arguments.choice(value, "scheme", SCHEMES)


def _shuffle(value: object) -> str | None:
    if isinstance(value, str):
        return arguments.choice(value, "shuffle", SHUFFLES)
    if value is None:
        return None
    return "torch" if arguments.flag(value, "shuffle") else None


def _unwrapped(batch_sampler: Any) -> tuple[Any, Any, int, bool]:
    """torch's own BatchSampler is a sampler, a batch size and drop_last."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and type(batch_sampler) is data.BatchSampler:
        return None, batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    return batch_sampler, None, 1, False
