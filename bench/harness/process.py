"""Runs commands and returns their time, CPU time and memory.

Times and memory are taken from outside, by the kernel's account of the child, so that a
program cannot misreport them. Every command is kept, to be printed beside its figures.
"""

import dataclasses
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Nothing here takes a third of it on a machine of two cores: what does, hangs.
LIMIT_SECONDS = 900


class CommandFailed(Exception):
    """A command could not be run to its end."""


@dataclasses.dataclass
class Finished:
    """A command that ran to its end."""

    output: str
    wall: float
    cpu: float
    rss: int
    # The most that a watcher has seen while it ran.
    memory: int

    @property
    def json(self):
        try:
            return json.loads(self.output)
        except ValueError as error:
            raise CommandFailed(f"did not print JSON: {self.output[:200]!r}") from error


class Commands:
    """The commands that were run, each once, as anyone can type them."""

    def __init__(self):
        self.seen = []
        self.names = {f"{ROOT}/": ""}

    def name(self, path, name):
        """From now on `path` is shown as `name`: where it is says nothing."""
        self.names[str(path)] = name

    def show(self, command):
        text = shlex.join(str(part) for part in command)
        for path, name in self.names.items():
            text = text.replace(path, name)
        return text

    def add(self, command):
        text = self.show(command)
        if text not in self.seen:
            self.seen.append(text)
            say(f"  {text}")


def target_directory():
    metadata = ["cargo", "metadata", "--no-deps", "--format-version=1"]
    answer = subprocess.check_output(metadata, cwd=ROOT)
    return pathlib.Path(json.loads(answer)["target_directory"])


def run(commands, command, inside=(), watch=None):
    """Runs a command; `inside` goes before it and runs it in its place; `watch` is a class that looks at its
    memory, by its process id."""
    command = [str(part) for part in (*inside, *command)]
    commands.add(command)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        try:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=errors)
        except OSError as error:
            raise CommandFailed(f"{command[0]}: {error.strerror}") from error
        watcher = watch(process.pid) if watch else None
        usage, timed_out = wait(process)
        wall = time.perf_counter() - start
        memory = watcher.stop() if watcher else 0
        if timed_out:
            raise CommandFailed(f"{commands.show(command)} was ended after {LIMIT_SECONDS} s")
        if process.returncode != 0:
            errors.seek(0)
            message = errors.read().decode(errors="replace").strip().splitlines()
            told = message[-1] if message else "it said nothing"
            raise CommandFailed(f"{commands.show(command)} failed: {told}")
        output.seek(0)
        text = output.read().decode()
    return Finished(text, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, memory)


def wait(process):
    """The kernel's account of a child that has ended, and whether it had to be ended. A child
    does not outlive an interruption of ours."""
    timed_out = threading.Event()
    limit = threading.Timer(LIMIT_SECONDS, lambda: (timed_out.set(), process.kill()))
    limit.daemon = True
    limit.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        limit.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage, timed_out.is_set()


class MemoryWatcher:
    """Looks now and then at what a process holds; what is held for less may go unseen."""

    interval = 0.02

    def __init__(self, pid):
        self.pid, self.peak, self.over = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def held(self):
        """Anonymous and shared memory."""
        with open(f"/proc/{self.pid}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        held = (fields.get(name, "0").split()[0] for name in ("RssAnon", "RssShmem"))
        return sum(int(kib) for kib in held) << 10

    def _look(self):
        while not self.over.wait(self.interval):
            try:
                self.peak = max(self.peak, self.held())
            except (OSError, ValueError):
                return

    def stop(self):
        self.over.set()
        self.thread.join()
        return self.peak


def drop_caches():
    """Empties the page cache of this machine; whether it could."""
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        return True
    except OSError:
        return False


def machine():
    """The machine in one line."""
    cpu, memory = "unknown CPU", 0
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            memory = int(line.split()[1]) >> 20
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {cpu}, {memory} GiB, Linux {os.uname().release}"


def stolen():
    """Ticks of all processors that the host has given to others, and all ticks, since the start."""
    ticks = list(map(int, pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    return ticks[7], sum(ticks)


def commit():
    """The commit of this checkout in words, and whether files differ from it. Documents do not count:
    a section that writes its table there does not change what the next one measures."""
    try:
        short = git("rev-parse", "--short", "HEAD").strip()
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!docs", ":!*.md")
    except (OSError, subprocess.CalledProcessError):
        return "a commit that is not known"
    return f"commit {short}" + (", changed since" if changed.strip() else "")


def git(*arguments):
    return subprocess.check_output(
        ["git", *arguments], cwd=ROOT, text=True, stderr=subprocess.DEVNULL
    )


def say(text):
    print(text, file=sys.stderr, flush=True)
