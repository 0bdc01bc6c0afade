"""How many images of a batch the processor takes, and how many the GPU."""

from __future__ import annotations

import pytest

from belady._device import balance as module
from belady._device.balance import Balance, IdlePriority

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


def test_the_gpu_decodes_what_the_processor_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_pause_of_training_does_not_make_the_processor_take_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def is_idle_after(priority: IdlePriority, rates: list[float]) -> bool:
    """Whether decoding runs at idle priority after batches at these rates."""
    for rate in rates:
        priority.took(BATCH, BATCH / rate)
    return priority.is_on


def test_the_first_batches_run_at_normal_priority() -> None:
    assert not is_idle_after(IdlePriority(True), [])
    assert not is_idle_after(IdlePriority(True), [9000] * (module._USUAL_BATCHES - 1))
    assert is_idle_after(IdlePriority(True), [9000] * module._USUAL_BATCHES)


def test_decoding_at_idle_priority_may_be_slower() -> None:
    assert is_idle_after(IdlePriority(True), [9000] * module._USUAL_BATCHES + [4000] * 1000)


def test_starved_decoding_returns_to_normal_priority() -> None:
    priority = IdlePriority(True)
    usual = [9000.0] * module._USUAL_BATCHES
    assert not is_idle_after(priority, usual + [30.0] * 20)
    # It does not begin again: the other threads may take the processor again.
    assert not is_idle_after(priority, [9000.0] * 100)


def test_one_slow_batch_changes_nothing() -> None:
    usual = [9000.0] * module._USUAL_BATCHES
    assert is_idle_after(IdlePriority(True), [*usual, 10.0, 8000.0])


def test_without_idle_priority_threads_run_at_normal_priority() -> None:
    assert not is_idle_after(IdlePriority(False), [9000] * 100)
