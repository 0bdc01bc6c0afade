"""Orders: torch's own, drawn ones, and those of a callback."""

import gc
import threading
import weakref
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from belady import _native

from .helpers import Start, ids

torch = pytest.importorskip("torch")


def listed(orders: _native.Orders, epoch: int) -> list[list[int]]:
    """The batches of an epoch."""
    found = orders.epoch(epoch)
    assert found is not None
    samples, ends = found
    assert ends[-1] == len(samples)
    return [samples[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_distributed_is_torchs(ranks: int, drop_last: bool) -> None:
    from torch.utils.data import DataLoader, DistributedSampler

    data = list(range(61))
    for rank in range(ranks):
        sampler = DistributedSampler(data, ranks, rank, seed=5)
        loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=drop_last)
        orders = _native.Orders.distributed(
            samples=61, batch=4, seed=5, rank=rank, ranks=ranks, drop_last=drop_last
        )
        for epoch in range(3):
            sampler.set_epoch(epoch)
            expected = [batch.tolist() for batch in loader]
            assert listed(orders, epoch) == expected
            assert orders.batches(epoch) == len(expected)
        assert orders.state(0) is None


@pytest.mark.parametrize(("draws", "through"), [("loader", True), ("sampler", False)])
def test_a_loader_draws_as_torchs_does(draws: str, through: bool) -> None:
    from torch.utils.data import DataLoader, RandomSampler

    data = list(range(50))
    generator = torch.Generator().manual_seed(11)
    torchs: Any
    if through:
        torchs = DataLoader(data, batch_size=8, shuffle=True, generator=generator)
    else:
        sampler = RandomSampler(data, generator=generator)
        torchs = DataLoader(data, batch_size=8, sampler=sampler)
    orders = _native.Orders.loader(samples=50, batch=8, seed=11, draws=draws)
    for epoch in range(4):
        state = bytes(generator.get_state().tolist())
        resumed = _native.Orders.loader(
            samples=50, batch=8, state=state, first_epoch=epoch, draws=draws
        )
        expected = [batch.tolist() for batch in torchs]
        assert listed(orders, epoch) == listed(resumed, 0) == expected
        # What is kept is a state that torch goes on from as well.
        blob = orders.state(epoch)
        assert blob is not None
        other = torch.Generator()
        other.set_state(torch.tensor(list(blob), dtype=torch.uint8))
        again = torch.Generator()
        again.set_state(torch.tensor(list(state), dtype=torch.uint8))
        assert torch.equal(torch.randperm(9, generator=other), torch.randperm(9, generator=again))
    assert orders.batches(0) == 7


def test_orders_can_start_at_any_position() -> None:
    orders = _native.Orders.loader(samples=50, batch=8, seed=1)
    later = orders.start_at(2, 3)
    assert listed(later, 0) == listed(orders, 2)[3:]
    assert listed(later, 1) == listed(orders, 3)
    assert later.batches(0) == 4 and later.batches(1) == 7
    assert later.state(1) == orders.state(3)
    assert listed(later.start_at(0, 1), 0) == listed(orders, 2)[4:]


def test_drawn_orders_are_shared_by_ranks() -> None:
    weights = [0.0, 1.0, 2.0, 3.0]
    parts = [
        _native.Orders.weighted(weights, batch=5, num_samples=40, rank=rank, ranks=2)
        for rank in range(2)
    ]
    drawn = [sample for part in parts for batch in listed(part, 0) for sample in batch]
    assert len(drawn) == 40 and 0 not in drawn
    whole = _native.Orders.mixture([10, 20], [1.0, 1.0], batch=4, num_samples=40, drop_last=True)
    samples = [sample for batch in listed(whole, 0) for sample in batch]
    assert len(samples) == 40 and set(samples) <= set(range(30))
    assert whole.batches(0) == 10


def test_wrong_arguments_are_refused() -> None:
    distributed = _native.Orders.distributed
    for wrong, words in [
        ({"samples": 0}, "samples must be from 1"),
        ({"batch": -3}, "batch must be from 1 to .*, not -3"),
        ({"order": "random"}, 'order must be "torch" or .*, not "random"'),
        ({"scheme": "fair"}, "scheme must be"),
        ({"rank": 2, "ranks": 2}, "rank"),
        ({"batch": 20, "drop_last": True}, "no complete batch"),
    ]:
        with pytest.raises(ValueError, match=words):
            distributed(**{"samples": 10, "batch": 2, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed or a state"):
        _native.Orders.loader(samples=10, batch=2)
    with pytest.raises(ValueError, match="3 bytes"):
        _native.Orders.loader(samples=10, batch=2, state=b"abc")
    with pytest.raises(ValueError, match="one weight for each"):
        _native.Orders.mixture([1, 2], [1.0], batch=1, num_samples=3)
    with pytest.raises(ValueError, match="weight"):
        _native.Orders.weighted([-1.0, 2.0], batch=1, num_samples=3)
    with pytest.raises(TypeError, match="function, not int"):
        _native.Orders.python(3, samples=10)  # type: ignore[arg-type]


def test_a_callback_runs_on_one_separate_thread(dataset: _native.Dataset, start: Start) -> None:
    threads = set()
    epochs = []

    def epoch(number: int) -> tuple[Any, Any] | None:
        threads.add(threading.current_thread())
        epochs.append(number)
        if number == 3:
            return None
        # Anything that iterates, a buffer, and ragged batches.
        kinds = [((at for at in range(10)), None), (array("q", range(7)), array("q", [2, 7]))]
        return kinds[number] if number < 2 else ([5, 5, 5], [1, 1, 3])

    orders = _native.Orders.python(epoch, samples=len(dataset), batch=4)
    assert ids(start(dataset, orders=orders, epochs=None)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
        [0, 1],
        [2, 3, 4, 5, 6],
        [5],
        [],
        [5, 5],
    ]
    assert epochs == [0, 1, 2, 3]
    assert len(threads) == 1 and threading.current_thread() not in threads
    assert orders.batches(0) is None and orders.state(0) is None
    assert orders.epoch(1) == (list(range(7)), [2, 7])
    assert orders.epoch(3) is None
    assert orders.start_at(1, 1).epoch(0) == ([2, 3, 4, 5, 6], [5])


def test_an_exception_of_a_callback_is_raised_when_its_epoch_is_due(
    dataset: _native.Dataset, start: Start
) -> None:
    error = LookupError("no such epoch")

    def epoch(number: int) -> tuple[Any, Any]:
        if number == 1:
            raise error
        return range(4), None

    orders = _native.Orders.python(epoch, samples=len(dataset), batch=4)
    loader = start(dataset, orders=orders, epochs=3)
    assert loader.next() is not None
    with pytest.raises(LookupError) as caught:
        loader.next()
    assert caught.value is error
    assert caught.traceback[-1].name == "epoch", "the user's own line is named"


def test_the_error_of_a_failing_generator_is_raised(dataset: _native.Dataset, start: Start) -> None:
    def samples() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("in the sampler")

    orders = _native.Orders.python(lambda _: (samples(), None), samples=len(dataset), batch=1)
    with pytest.raises(ZeroDivisionError, match="in the sampler"):
        start(dataset, orders=orders).next()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (([0, 60], None), "epoch 0 has sample 60 at position 1"),
        (([-1], None), "sample -1 at position 0"),
        (([0, 1], [2, 1]), "cannot end at"),
        (([0, 1], [3]), "cannot end at"),
    ],
)
def test_the_error_of_a_wrong_order_names_the_position(
    dataset: _native.Dataset, start: Start, given: Any, words: str
) -> None:
    orders = _native.Orders.python(lambda _: given, samples=len(dataset), batch=2)
    with pytest.raises(ValueError, match=words):
        start(dataset, orders=orders).next()


def test_an_order_of_something_else_is_a_type_error(dataset: _native.Dataset, start: Start) -> None:
    for given in [(["a"], None), 5, ([1, 2],)]:
        orders = _native.Orders.python(lambda _, given=given: given, samples=60, batch=2)
        with pytest.raises((TypeError, ValueError)):
            start(dataset, orders=orders).next()


def test_a_loader_that_its_own_callback_refers_to_is_collected(
    dataset: _native.Dataset, start: Start
) -> None:
    class Sampler:
        loader: _native.Loader

        def epoch(self, number: int) -> tuple[Any, Any]:
            return range(8), None

    sampler = Sampler()
    orders = _native.Orders.python(sampler.epoch, samples=len(dataset), batch=4)
    sampler.loader = start(dataset, orders=orders.start_at(0, 1), epochs=None)
    assert sampler.loader.next() is not None
    gone = weakref.ref(sampler)
    del sampler, orders
    gc.collect()
    assert gone() is None


def test_closing_waits_for_no_callback(dataset: _native.Dataset, start: Start) -> None:
    inside, leave = threading.Event(), threading.Event()

    def epoch(number: int) -> tuple[Any, Any]:
        if number == 1:
            inside.set()
            leave.wait(60)
        return range(8), None

    orders = _native.Orders.python(epoch, samples=len(dataset), batch=4)
    loader = start(dataset, orders=orders, epochs=5)
    assert loader.next() is not None
    assert inside.wait(60)
    loader.close()
    leave.set()


def test_a_failed_start_leaves_no_thread(dataset: _native.Dataset, start: Start) -> None:
    def callbacks() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "belady-orders"}

    before = callbacks()
    orders = _native.Orders.python(lambda _: None, samples=len(dataset), batch=4)
    for wrong in ({"policy": "none"}, {"staging": 10}, {"bad_samples": "eat"}):
        with pytest.raises(ValueError, match=r"\w"):
            start(dataset, orders=orders, **wrong)
    for thread in callbacks() - before:
        thread.join(60)
    assert callbacks() <= before
