"""Selects the order that `shuffle`, `sampler`, `batch_sampler`, `generator` and `seed` ask for.

- `shuffle=True`, one process: torch's `DataLoader(shuffle=True)`, by `torch.manual_seed`.
  With `generator` or `seed`: torch's `DataLoader(shuffle=True, generator=g)`.
- `shuffle=True`, several processes: torch's `DistributedSampler(seed=seed)`, from seed + epoch.
- `shuffle="permutation"`: a permutation that needs no memory, for billions of samples.
- `shuffle=False`: by id; several processes share it as `DistributedSampler(shuffle=False)` does.
- torch's `RandomSampler(generator=g)`, `SequentialSampler`, `DistributedSampler`: theirs, natively.
- `sampler=belady.Weighted(...)`, `data=belady.Mixture(...)`: by weight.
- any other `sampler` or `batch_sampler`: it runs, one epoch ahead.

Several processes share what torch's samplers give that know nothing of ranks: see `sharding.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import _native
from .._cluster.world import World
from .._configuration import arguments
from .._loader import accelerate as with_accelerate
from .._loader.accelerate import Padding
from . import generator_state
from .order import NumberedOrder, Order, TorchDistributedOrder
from .sharding import Sharding, is_sharded
from .torch_default import DefaultGeneratorOrder
from .torch_generator import GeneratorOrder
from .user_sampler import SamplerOrder
from .weighted import Mixture, Weighted

if TYPE_CHECKING:
    from .._configuration.loader_options import LoaderArguments
    from .._loader.seed import Seed

SHUFFLES = ("torch", "permutation")


@dataclass(frozen=True)
class OrderSelection:
    """The checked arguments that decide the order."""

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
    #: Whether torch's default generator draws the order where it does in torch.
    follows_torch: bool = False
    #: Whether ranks share what the sampler gives.
    is_sharded: bool = False
    #: Batches that torch's worker processes would request ahead; 0 without workers.
    asked_ahead: int = 0
    persistent: bool = False

    @property
    def length(self) -> int:
        """Samples of an epoch on this rank."""
        return -(-self._own_length() // self.world.size)

    def _own_length(self) -> int:
        """Returns the samples of an epoch on all ranks, where no sampler of the user decides."""
        if self.mixture is not None:
            return len(self.mixture)
        return len(self.sampler) if isinstance(self.sampler, Weighted) else self.samples

    @property
    def padding(self) -> Padding | None:
        """How an epoch is padded; None if a sampler of the user may pad it."""
        if self.world.size == 1:
            return Padding(0, 0)
        data: Any = sys.modules.get("torch.utils.data")
        if self.batch_sampler is not None:
            return None
        if self.sampler is None or isinstance(self.sampler, Weighted):
            samples, even = self._own_length(), self.scheme in ("uniform", "parts")
        elif data is not None and type(self.sampler) is data.DistributedSampler:
            samples, even = len(self.sampler.dataset), not self.sampler.drop_last
        elif self.is_sharded and hasattr(self.sampler, "__len__"):
            samples, even = len(self.sampler), True
        else:
            return None
        return Padding(samples, -samples % self.world.size if even else 0)

    def order(self, kind: str | None = None) -> Order:
        """Makes the order; `kind` is that of a checkpoint, perhaps of another world size."""
        if self.mixture is not None:
            native = self.mixture.orders(**self._share())
            return self._numbered(native, kind="mixture", **self.mixture.identity)
        if isinstance(self.sampler, Weighted):
            native = self.sampler.orders(self.samples, **self._share())
            return self._numbered(native, kind="weighted", **self.sampler.identity)
        if self.batch_sampler is not None:
            return self._run(self.batch_sampler, None)
        if self.sampler is not None:
            return self._recognised() or self._run(self.sampler, self.batch)
        kind = kind or self._kind()
        if self.shuffle == "torch" and kind == "torch":
            return self._default()
        if self.shuffle == "torch" and kind == "generator":
            return self._generated(
                self.generator, "persistent-loader" if self.persistent else "loader"
            )
        return self._distributed()

    def _kind(self) -> str:
        if self.world.size > 1:
            return "distributed"
        return "torch" if self.follows_torch and self.generator is None else "generator"

    def _default(self) -> Order:
        return DefaultGeneratorOrder(
            samples=self.samples,
            batch=self.batch,
            drop_last=self.drop_last,
            persistent=self.persistent,
            sharding=self._sharding(self.world.size > 1),
        )

    def _share(self) -> dict[str, Any]:
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
            samples=self.samples, order=order, scheme=self.scheme, **self._share()
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
        return SamplerOrder(
            sampler,
            samples=self.samples,
            batch=batch,
            drop_last=self.drop_last,
            base_seed=self._base_seed(),
            sharding=self._sharding(self.is_sharded),
        )

    def _sharding(self, is_on: bool) -> Sharding:
        return Sharding(self.world.rank, self.world.size, self.seed, is_on)

    def _recognised(self) -> Order | None:
        """Returns the native order of a sampler of torch over all samples; None for any other.

        A subclass may do anything, so it is not recognised.
        """
        data: Any = sys.modules.get("torch.utils.data")
        if data is None:
            return None
        sampler, kind = self.sampler, type(self.sampler)
        if kind is data.SequentialSampler and len(sampler) == self.samples:
            world = self.world if self.is_sharded else World()
            return replace(self, sampler=None, shuffle=None, world=world)._distributed()
        if kind is data.RandomSampler and self._plain(sampler) and self.is_sharded:
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
    """Draws the number that torch's `DataLoader` draws when an epoch begins, and discards it.

    torch seeds worker processes with it. Drawing it leaves the generator, which may be the default
    one that dropout uses, where torch's loader would leave it.
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
            state = generator_state.read(self._generator).skip(generator_state.BASE_SEED_WORDS)
            generator_state.write(self._generator, state)
        elif torch is not None and hasattr(torch, "empty"):
            torch.empty((), dtype=torch.int64).random_()


def checked(
    given: LoaderArguments, *, samples: int, seed: Seed, world: World, mixture: Mixture | None
) -> OrderSelection:
    """Returns the selection. Raises for arguments that contradict each other."""
    batch_size, sampler, batch_sampler = given.batch_size, given.sampler, given.batch_sampler
    how = _shuffle(given.shuffle)
    drop = arguments.flag(given.drop_last, "drop_last")
    if batch_sampler is not None:
        if batch_size != 1 or how is not None or sampler is not None or drop:
            raise ValueError(
                "batch_sampler makes the batches, so leave batch_size, shuffle, sampler and "
                "drop_last out"
            )
        batch_sampler, sampler, batch_size, drop = _unwrapped(batch_sampler)
    if batch_size is None:
        raise ValueError(
            "batch_size=None (samples one by one) is not supported; use batch_size=1, or data[i]"
        )
    if sampler is not None and how is not None:
        raise ValueError("sampler decides the order, so leave shuffle out")
    if mixture is not None and (sampler is not None or batch_sampler is not None):
        raise ValueError("a Mixture decides the order, so leave sampler and batch_sampler out")
    for name, one in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if one is not None and not (hasattr(one, "__iter__") or isinstance(one, Weighted)):
            raise TypeError(f"{name} has to be iterable, not {type(one).__name__}")
    share = _scheme(given.scheme)
    if given.scheme not in (None, "uniform") and not (mixture is sampler is batch_sampler is None):
        raise ValueError(
            f'scheme="{share}" is for orders that the loader makes; leave it out where a '
            "sampler or a Mixture decides"
        )
    if given.generator is not None:
        generator_state.check(given.generator)
        if how == "torch" and world.size > 1:
            raise ValueError(
                "several processes draw the order from seed + epoch, as DistributedSampler does, "
                "and not from a generator; pass seed instead of generator"
            )
    return OrderSelection(
        samples=samples,
        batch=arguments.count(batch_size, "batch_size", least=1),
        drop_last=drop,
        shuffle=how,
        sampler=sampler,
        batch_sampler=batch_sampler,
        generator=given.generator,
        seed=seed.of_orders,
        scheme=share,
        world=world,
        mixture=mixture,
        follows_torch=seed.follows_torch,
        is_sharded=_is_sharded(
            sampler if batch_sampler is None else batch_sampler, given.shard_sampler, world
        ),
        asked_ahead=given.requested_ahead,
        persistent=given.persistent_workers and given.num_workers > 0,
    )


def _is_sharded(sampler: Any, wanted: object, world: World) -> bool:
    if wanted is not None:
        wanted = arguments.flag(wanted, "shard_sampler")
        if sampler is None or isinstance(sampler, Weighted):
            raise ValueError(
                "shard_sampler is for a sampler of yours; ranks always share an order that the "
                "loader makes, so leave it out"
            )
    if sampler is None or isinstance(sampler, Weighted):
        return False
    return is_sharded(sampler, wanted, world)


def _scheme(value: object) -> str:
    if value is None:
        # Accelerate assumes that the ranks' parts, laid end to end, are the batch.
        return "parts" if with_accelerate.in_use() else "uniform"
    return arguments.choice(value, "scheme", _native.SCHEMES)


def _shuffle(value: object) -> str | None:
    if isinstance(value, str):
        return arguments.choice(value, "shuffle", SHUFFLES)
    if value is None:
        return None
    return "torch" if arguments.flag(value, "shuffle") else None


def _unwrapped(batch_sampler: Any) -> tuple[Any, Any, int, bool]:
    """Takes torch's own BatchSampler apart: a sampler, a batch size and drop_last."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and type(batch_sampler) is data.BatchSampler:
        return None, batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    return batch_sampler, None, 1, False
