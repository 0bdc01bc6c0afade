"""Several processes of one job on a node: what they share, what each has alone, and how they
leave.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

import pytest
from starting import LIMIT, PROLOGUE, started

import belady
from belady._cluster.world import World
from belady._configuration import memory
from belady._engine.engine import serve
from belady._log import RateLimit

RANKS = 3

LOADER = """
import time, belady
data = belady.open(os.environ["DATA"])
rank = int(os.environ["BELADY_RANK"])
loader = belady.DataLoader(data, batch_size=2, shuffle=True, seed=0, cache="ram:400KB",
                           metrics=os.environ.get("METRICS"))
"""


def ranks(folder: Path, script: str, *, fails: bool = False, **more: str) -> list[str]:
    """Returns the output of several processes that meet in a directory."""
    file = folder / "rank.py"
    file.write_text(PROLOGUE + script)
    meeting = {"BELADY_MEET": str(folder / "meeting"), "BELADY_RANKS": str(RANKS)}
    processes = [
        started([sys.executable, file], BELADY_RANK=str(rank), **meeting, **more)
        for rank in range(RANKS)
    ]
    output = [process.communicate(timeout=LIMIT)[0] for process in processes]
    assert [process.returncode != 0 for process in processes] == [fails] * RANKS, output
    return output


def test_ranks_that_leave_epochs_after_different_batches_continue(
    photos: Path, tmp_path: Path
) -> None:
    """The third such epoch ended in "the order ... adds up to ..."."""
    leave = """
for epoch in range(6):
    for number, batch in enumerate(loader):
        assert (batch.epoch, batch.iteration) == (epoch, number)
        if number == 2 + rank:
            break
print("done")
"""
    for output in ranks(tmp_path, LOADER + leave, DATA=str(photos)):
        assert output.endswith("done\n"), output


def test_the_error_of_different_starts_names_them(photos: Path, tmp_path: Path) -> None:
    begin = """
loader.set_epoch(3 if rank == 1 else 0)
try:
    next(iter(loader))
except belady.BeladyError as error:
    print(error)
    sys.exit(1)
"""
    for output in ranks(tmp_path, LOADER + begin, fails=True, DATA=str(photos)):
        assert "rank 0 with batch 0 of epoch 0 and rank 1 with batch 0 of epoch 3" in output, output
        assert "peers=None" in output


def test_ranks_that_are_done_leave_without_a_warning(photos: Path, tmp_path: Path) -> None:
    """Ranks that went on took them for lost."""
    read = """
for epoch in range(2):
    for batch in loader:
        if rank == 2:
            time.sleep(0.05)
"""
    assert ranks(tmp_path, LOADER + read, DATA=str(photos)) == [""] * RANKS


def test_each_rank_has_a_port_for_metrics_and_one_that_is_taken_blocks_no_rank(
    photos: Path, tmp_path: Path
) -> None:
    read = """
sum(1 for batch in loader)
print(loader.engine.metrics_address)
"""
    # An address of the loopback that this process has to itself, at ports that the system gives to
    # none.
    high, middle, low = os.getpid().to_bytes(3, "big")
    host, port = f"127.{128 | high}.{middle}.{low}", 19464
    with socket.socket() as taken:
        taken.bind((host, port + 1))
        taken.listen()
        token = {"BELADY_METRICS_TOKEN": "secret", "METRICS": f"{host}:{port}"}
        output = ranks(tmp_path, LOADER + read, DATA=str(photos), **token)
    assert output[0] == f"{host}:{port}\n"
    assert f"{host}:{port + 1}" in output[1] and "rank 1 continues without metrics" in output[1]
    assert output[2] == f"{host}:{port + 2}\n"


def test_a_rank_without_a_port_for_metrics_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(rank=3, size=8, local_rank=3, local_size=8)
    with belady.Engine(cache=[], peers=None) as engine, caplog.at_level(logging.WARNING, "belady"):
        assert serve(engine.native, "127.0.0.1:65533", world) is None
    assert "leaves no port for process 3" in caplog.text
    assert "rank 3 continues without metrics" in caplog.text


def test_ranks_of_a_node_share_the_staging_buffer_of_default_size(
    data: belady.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight ranks took eight times as much."""

    def staging(**more: object) -> int:
        with belady.DataLoader(data, batch_size=8, peers=None, cache=[], **more) as loader:  # type: ignore[arg-type]
            return loader._options.staging

    monkeypatch.setattr(memory, "available", lambda: 1 << 40)
    assert staging() == 512 << 20
    assert staging(rank=3, world_size=8) == (512 << 20) // 8
    assert staging(rank=3, world_size=8, staging="100MB") == 100_000_000, "of a rank, as named"
    monkeypatch.setattr(memory, "available", lambda: 0)
    needed = data.native.staging_needed(8)
    assert staging(rank=3, world_size=1 << 12) == needed, "two batches fit in any case"


@pytest.fixture
def limited() -> tuple[logging.Logger, RateLimit, list[str]]:
    """Returns a logger, its rate limit and the lines that it shows."""
    log, shown = logging.Logger("of a test"), []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    few = RateLimit(log)
    log.addFilter(few)
    return log, few, shown


def test_warnings_of_one_kind_are_a_few_lines_and_a_count(
    limited: tuple[logging.Logger, RateLimit, list[str]],
) -> None:
    log, few, shown = limited
    for number in range(5316):
        log.warning("left out: %s", number)
    assert shown == [f"left out: {number}" for number in range(5)]
    log.error("left out: %s", "an error")
    for _ in range(10):
        log.info("left out: %s", "no warning")
    assert len(shown) == 5 + 1 + 10
    few.finish()
    assert shown[-1].startswith("and 5,311 more of the same in the last ")
    assert shown[-1].endswith(" s, the last of them: left out: 5315")


def test_counts_of_suppressed_warnings_come_before_the_next_warning(
    limited: tuple[logging.Logger, RateLimit, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, few, shown = limited

    class Passed:
        """A limiter whose interval has passed for more kinds than lines of one kind are shown."""

        def counts(self) -> list[str]:
            return [f"and {kind} more" for kind in range(8)]

        def admits(self, level: int, text: str, line: str) -> bool:
            return True

    monkeypatch.setattr(few, "_limiter", Passed())
    log.warning("next")
    assert shown == [*(f"and {kind} more" for kind in range(8)), "next"]


#: A pipeline that has much to say when the program ends.
LAST_WORDS = """
import logging, belady
from belady._pipeline import pipeline
class Talkative:
    def close(self):
        for _ in range(100):
            logging.getLogger("belady").warning("late")
last = Talkative()
pipeline._LIVE.add(last)
"""


def test_warnings_of_what_ends_with_the_program_are_few_too(tmp_path: Path) -> None:
    """They were logged after the count, all of them."""
    file = tmp_path / "last.py"
    file.write_text(PROLOGUE + LAST_WORDS)
    output = started([sys.executable, file]).communicate(timeout=LIMIT)[0]
    assert output.count("late\n") == 5 + 1 and "and 95 more of the same" in output, output


def test_suppressed_warnings_of_all_kinds_are_counted_at_the_end(
    limited: tuple[logging.Logger, RateLimit, list[str]],
) -> None:
    log, few, shown = limited
    # More kinds than lines of one kind are shown: their counts are one kind themselves.
    for kind in range(8):
        for _ in range(7):
            log.warning(f"kind {kind}")
    shown.clear()
    few.finish()
    assert all(line.startswith("and 2 more of the same") for line in shown)
    assert sorted(line[-6:] for line in shown) == [f"kind {kind}" for kind in range(8)]
