"""How many images of a batch the processor takes, and how many the GPU."""

from __future__ import annotations

import pytest

from belady.device import balance as module
from belady.device.balance import Balance, Manners

BATCH = 256


def run(
    monkeypatch: pytest.MonkeyPatch, processor: float, gpu: float, step: float, batches: int = 200
) -> tuple[int, float]:
    """The processor's share at the end and the seconds a batch takes, for images a second of both
    and seconds that a training step takes: a batch comes when the slowest of them is done."""
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    balance = Balance()
    share, interval = 0, 0.0
    for _ in range(batches):
        share = balance.begin(BATCH)
        balance.took(share, share / processor)
        interval = max(share / processor, (BATCH - share) / gpu, step)
        now += interval
    return share, interval


def test_a_processor_that_is_fast_enough_does_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, processor=9000, gpu=15000, step=BATCH / 4700)[0] == BATCH


def test_both_work_when_neither_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    share, interval = run(monkeypatch, processor=9000, gpu=15000, step=BATCH / 50000)
    best = BATCH / (9000 + 15000)
    assert 0 < share < BATCH and interval < 1.15 * best


def test_a_gpu_helps_as_far_as_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    step = BATCH / 13000
    share, interval = run(monkeypatch, processor=9000, gpu=15000, step=step)
    assert interval == step
    assert share == int(module._BUSY * 9000 * step)


@pytest.mark.parametrize("processor", [50.0, 500.0])
def test_a_slow_processor_does_not_hold_the_gpu_up(
    monkeypatch: pytest.MonkeyPatch, processor: float
) -> None:
    _, interval = run(monkeypatch, processor=processor, gpu=15000, step=0.001)
    assert interval < 1.3 * max(1 / processor, BATCH / (15000 + processor))


def test_a_pause_of_training_does_not_make_the_processor_take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now, step = 100.0, BATCH / 13000
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    balance = Balance()
    shares = []
    for number in range(300):
        shares.append(balance.begin(BATCH))
        balance.took(shares[-1], shares[-1] / 9000)
        now += 20.0 if number == 200 else step
    assert shares[200] == int(module._BUSY * 9000 * step)
    assert max(shares[201:]) < 1.3 * shares[200]
    assert shares[-1] == shares[200]


def made(manners: Manners, rates: list[float]) -> bool:
    """Whether it gives way after batches that were made at these rates."""
    for rate in rates:
        manners.took(BATCH, BATCH / rate)
    return manners.gives_way


def test_the_first_batches_are_made_as_others_are() -> None:
    assert not made(Manners(True), [])
    assert not made(Manners(True), [9000] * (module._USUAL_BATCHES - 1))
    assert made(Manners(True), [9000] * module._USUAL_BATCHES)


def test_decoding_gives_way_though_that_makes_it_slower() -> None:
    assert made(Manners(True), [9000] * module._USUAL_BATCHES + [4000] * 1000)


def test_decoding_that_is_left_nothing_stops_giving_way() -> None:
    manners = Manners(True)
    usual = [9000.0] * module._USUAL_BATCHES
    assert not made(manners, usual + [30.0] * 20)
    # It does not begin again: who took the processor once may do so again.
    assert not made(manners, [9000.0] * 100)


def test_one_slow_batch_changes_nothing() -> None:
    usual = [9000.0] * module._USUAL_BATCHES
    assert made(Manners(True), [*usual, 10.0, 8000.0])


def test_where_threads_cannot_give_way_they_do_not() -> None:
    assert not made(Manners(False), [9000] * 100)
