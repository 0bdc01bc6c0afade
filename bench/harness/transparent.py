"""What sections about `belady run` need: levels, a launcher that waits, and times of processes."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import threading
import time

from .context import Context
from .process import ROOT, CommandFailed, run

LOADERS = ROOT / "bench" / "loaders"
# No level changes for so long unless all copies are made.
SETTLED_SECONDS = 1.0


@dataclasses.dataclass
class TransparentContext(Context):
    def transparent(self, data, level, quota, program, **how):
        """Runs a program under `belady run`."""
        return run(self.commands, self.command(data, level, quota, program), **how)

    def command(self, data, level, quota, program):
        return [
            self.binary("belady"),
            "run",
            "--data",
            data,
            "--cache",
            f"{level}:{quota}B",
            "--",
            *program,
        ]

    def fill(self, data, level, quota, files):
        """Makes copies of all files, by a program that reads them; the folder they lie in."""
        self.transparent(data, level, quota, ["python3", LOADERS / "fill.py", data, level, files])
        return copies_in(level)

    def calls(self):
        """The C program that makes calls in loops."""
        source, program = ROOT / "bench" / "calls.c", self.folder / "calls"
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            run(self.commands, ["cc", "-O2", "-pthread", "-o", program, source])
        return program

    @contextlib.contextmanager
    def level(self, name="transparent-level"):
        """An empty folder for copies, removed in the end."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def instructions(self, command, prefix=()):
        """Instructions that a program and those it starts take in user mode; none without valgrind."""
        if not shutil.which("valgrind"):
            return None
        logs = self.folder / "callgrind"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir()
        counted = [
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--trace-children=yes",
            f"--log-file={logs}/%p",
            *command,
        ]
        run(self.commands, [*prefix, *counted])
        found = [re.search(r"Collected\s*:\s*(\d+)", log.read_text()) for log in logs.iterdir()]
        if not any(found):
            raise CommandFailed(f"valgrind has not told what it counted in {logs}")
        return sum(int(match[1]) for match in found if match)


def copies_in(level):
    """The folder of copies below a level that has those of one dataset."""
    found = list(pathlib.Path(level).glob("*/files"))
    if len(found) != 1:
        raise CommandFailed(f"{level} holds copies of {len(found)} datasets instead of one")
    return found[0]


class Launcher:
    """`with Launcher(context, ...) as environment:` a launcher that stays, and what a process needs in
    its environment to be one of its program's."""

    SCRIPT = 'printf "%s\\n%s\\n" "$LD_PRELOAD" "$BELADY_RUN"; read -r end'

    def __init__(self, context, data, level, quota):
        command = context.command(data, level, quota, ["sh", "-c", self.SCRIPT])
        context.commands.add(command)
        self.command = [str(part) for part in command]

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        preload, attach = (self.process.stdout.readline().strip() for _ in range(2))
        if not preload or not attach:
            self.__exit__()
            raise CommandFailed("belady run has not told the program where its library is")
        return {**os.environ, "LD_PRELOAD": preload, "BELADY_RUN": attach}

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Gate:
    """Between the first epoch and the second: opens when no more copies are being made.

    `lag` says for how long the first epoch was over before that."""

    def __init__(self, folder, level):
        self.path, self.level, self.lag = pathlib.Path(folder), pathlib.Path(level), 0.0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self):
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        shutil.rmtree(self.path, ignore_errors=True)

    def _keep(self):
        while not (self.path / "reached").exists():
            if self.over.wait(0.01):
                return
        start = changed = time.monotonic()
        seen = held(self.level)
        while time.monotonic() - changed < SETTLED_SECONDS:
            if self.over.wait(0.05):
                return
            now = held(self.level)
            if now != seen:
                seen, changed = now, time.monotonic()
        self.lag = changed - start
        from_disk()
        (self.path / "open").touch()


def from_disk():
    """What was written is on the disk, and is read from there. Otherwise the second epoch would be the first to
    touch pages that were just written, and be compared with one that finds them well settled."""
    os.sync()
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")


def held(level):
    """Files and bytes below a folder, partial ones too."""
    files = bytes_ = 0
    for folder, _, names in os.walk(level):
        for name in names:
            with contextlib.suppress(OSError):
                files, bytes_ = files + 1, bytes_ + os.stat(os.path.join(folder, name)).st_size
    return files, bytes_


def timed(command, environment=None):
    """Wall and CPU seconds of one process and those it waited for, with as little around it as possible."""
    command = [str(part) for part in command]
    quiet = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    start = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, environment or os.environ, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - start
    if status != 0:
        raise CommandFailed(f"{command[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return wall, usage.ru_utime + usage.ru_stime


def in_turns(variants, repetitions):
    """Runs functions by name in turns, each turn in another order; what they gave, by name. The first
    turn warms up and is not kept."""
    found = {name: [] for name in variants}
    names = list(variants)
    for turn in range(repetitions + 1):
        for name in names:
            result = variants[name]()
            if turn:
                found[name].append(result)
        names.append(names.pop(0))
    return found


def median_ratio(values, reference):
    return statistics.median(values) / statistics.median(reference)
