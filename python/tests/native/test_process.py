"""Signals, forks and ends of processes, each in a separate program."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from support import MAY_FORK

from .helpers import write_dataset

START = """
    import os, signal, sys, threading, time
    from belady import _native

    data = _native.Dataset.open(sys.argv[1], throttle=sys.argv[2] if len(sys.argv) > 2 else None)
    engine = _native.Engine(tiers=[(None, 1 << 20)], threads=2)
    orders = _native.Orders.distributed(samples=len(data), batch=4)
"""
SLOW = "1:1GB/s,latency:1h"


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_dataset(tmp_path / "data"))


def program(code: str) -> str:
    return textwrap.dedent(START) + textwrap.dedent(code)


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *MAY_FORK, "-c", program(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def quiet(code: str, *arguments: str) -> str:
    """Runs a program that has nothing to complain of; what it prints."""
    done = run(code, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def interrupted(code: str, *arguments: str) -> tuple[int, str]:
    """Runs a program until it prints a line, then sends Ctrl-C; returns status and output."""
    # A job in the background of a shell inherits that Ctrl-C is ignored.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", heard + program(code), *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n", child.communicate()
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)  # and not the hour that the source takes
    return child.returncode, errors


def test_ctrl_c_works_while_a_loader_waits(data: str) -> None:
    status, errors = interrupted(
        """
        loader = engine.start(data, orders)
        print("waiting", flush=True)
        loader.next()
        """,
        data,
        SLOW,
    )
    assert "KeyboardInterrupt" in errors and status == -signal.SIGINT


def test_a_program_that_catches_ctrl_c_continues(data: str) -> None:
    status, errors = interrupted(
        """
        loader = engine.start(data, orders)
        try:
            print("waiting", flush=True)
            loader.next()
        except KeyboardInterrupt:
            pass
        # Its threads are still in the hour that the source takes, so others have to read.
        fast = _native.Dataset.open(sys.argv[1])
        loader = _native.Engine().start(fast, orders, epochs=1)
        assert sum(len(batch) for batch in iter(loader.next, None)) == len(data)
        os._exit(0)
        """,
        data,
        SLOW,
    )
    assert (status, errors) == (0, "")


@pytest.mark.parametrize("keep", ["global", "cycle", "thread"])
def test_an_exit_with_a_live_iterator_is_quiet(data: str, keep: str) -> None:
    quiet(
        f"""
        loader = engine.start(data, orders, epochs=None)
        batch = loader.next()
        view = memoryview(batch[0])
        if {keep!r} == "cycle":
            knot = [loader, batch]
            knot.append(knot)
        if {keep!r} == "thread":
            threading.Thread(target=lambda: list(iter(loader.next, None)), daemon=True).start()
            time.sleep(0.2)
        """,
        data,
    )


@pytest.mark.parametrize("busy", ["in a callback", "in a generator", "waiting", "asleep"])
def test_an_exit_while_a_sampler_runs_is_quiet(data: str, busy: str) -> None:
    quiet(
        f"""
        def forever():
            while True:
                yield 0

        def epoch(number):
            if number == 1 and {busy!r} == "in a callback":
                while True:
                    sum(range(1000))
            if number == 1 and {busy!r} == "in a generator":
                return forever(), None
            if number == 1 and {busy!r} == "asleep":
                time.sleep(1000)
            return range(len(data)), None

        orders = _native.Orders.python(epoch, samples=len(data), batch=4)
        loader = engine.start(data, orders, epochs=None)
        loader.next()
        time.sleep(0.1)
        """,
        data,
    )


def test_an_exit_in_the_middle_of_next_is_quiet(data: str) -> None:
    quiet(
        """
        loader = engine.start(data, orders)
        threading.Thread(target=loader.next, daemon=True).start()
        time.sleep(0.3)
        os._exit(0) if len(sys.argv) > 3 else sys.exit(0)
        """,
        data,
        SLOW,
    )


def test_a_forked_child_uses_nothing_of_its_parent(data: str) -> None:
    printed = quiet(
        """
        loader = engine.start(data, orders, epochs=2)
        first = loader.next()
        sample, view = first[0], memoryview(first[0])
        random_access = engine.view(data)
        child = os.fork()
        if child == 0:
            refused = 0
            uses = [loader.next, loader.stats, loader.waiting_for, loader.close, engine.stats,
                    lambda: engine.view(data), lambda: engine.start(data, orders),
                    lambda: engine.threads, lambda: first.ids, lambda: first[0], first.samples,
                    first.stacked, lambda: bytes(sample), lambda: memoryview(sample),
                    sample.__dlpack__, lambda: random_access.read([0]), lambda: data.read([0])]
            for use in uses:
                try:
                    use()
                except _native.BeladyError as error:
                    assert "in this process" in str(error), error
                    refused += 1
            # Lists can be looked at; and all that is needed can be made anew.
            assert len(data) == 60 and data.classes and data.label(0) == 0
            del loader, first, sample, view, engine, random_access
            own = _native.Dataset.open(sys.argv[1])
            fresh = _native.Engine(tiers=[(None, 1 << 20)]).start(own, orders, epochs=1)
            read = sum(len(batch) for batch in iter(fresh.next, None))
            print("child", refused == len(uses), read, flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        rest = sum(len(batch) for batch in iter(loader.next, None))
        print("parent", bytes(view) == bytes(sample), rest)
        """,
        data,
    )
    assert printed == "child True 60\nparent True 116\n"


@pytest.mark.parametrize("writable", [True, False])
def test_a_forked_child_keeps_lent_samples_as_of_the_fork(data: str, writable: bool) -> None:
    """From the staging buffer, and from the RAM tier itself in later epochs."""
    printed = quiet(
        f"""
        loader = engine.start(data, orders, epochs=6, staging=1 << 16, writable={writable})
        for _ in range(20):
            batch = loader.next()
        views = [memoryview(sample) for sample in batch.samples()]
        before = [bytes(view) for view in views]
        from_here, to_child = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(from_here, 1)
            assert [bytes(view) for view in views] == before
            if {writable}:
                views[0][0] = 255 - before[0][0]
            sys.exit(0)
        # The parent uses this memory again, many times, before the child looks at it.
        del batch, views
        rest = sum(len(batch) for batch in iter(loader.next, None))
        os.write(to_child, b".")
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), rest)
        """,
        data,
    )
    assert printed == "0 280\n"


def test_a_forked_child_writes_to_its_own_copy_of_what_was_lent(data: str) -> None:
    printed = quiet(
        """
        loader = engine.start(data, orders, epochs=2)
        batch = loader.next()
        view = memoryview(batch[0])
        before = bytes(view)
        child = os.fork()
        if child == 0:
            view[:] = bytes(len(view))
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bytes(view) == before)
        """,
        data,
    )
    assert printed == "0 True\n"


def test_a_forked_child_takes_no_memory_of_its_parents_caches(tmp_path: Path) -> None:
    for sample in range(60):
        (tmp_path / f"{sample:02}.bin").write_bytes(bytes([sample]) * (2 << 20))
    printed = quiet(
        """
        def anonymous(process):
            lines = open(f"/proc/{process}/status").read().splitlines()
            return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("RssAnon"))

        engine = _native.Engine(tiers=[(None, 128 << 20)], threads=2)
        loader = engine.start(data, orders, epochs=3, staging=32 << 20)
        for _ in range(16):
            loader.next()
        child = os.fork()
        if child == 0:
            signal.pause()
        # All that is there is written to once more.
        for _ in iter(loader.next, None):
            pass
        print(anonymous(os.getpid()) > 128, anonymous(child) < 80)
        os.kill(child, signal.SIGKILL)
        """,
        str(tmp_path),
    )
    assert printed == "True True\n"


def test_a_child_that_only_exits_leaves_its_parent_alone(data: str) -> None:
    printed = quiet(
        """
        loader = engine.start(data, orders, epochs=3, writable=False)
        seen = 0
        for _ in range(10):
            seen += len(loader.next())
            child = os.fork()
            if child == 0:
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        print(seen + sum(len(batch) for batch in iter(loader.next, None)))
        """,
        data,
    )
    assert printed == "180\n"


def test_many_threads_may_exit_with_a_callback_between_them(data: str) -> None:
    quiet(
        """
        def epoch(number):
            time.sleep(0.01)
            return range(4), None

        for _ in range(8):
            orders = _native.Orders.python(epoch, samples=len(data), batch=4)
            loader = engine.start(data, orders, epochs=None, staging=1 << 20)
            run = lambda loader=loader: [None for _ in iter(loader.next, None)]
            threading.Thread(target=run, daemon=True).start()
        time.sleep(0.3)
        """,
        data,
    )
