"""Starts programs, with `belady run` around them or without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

#: The command of the package that is tested.
BELADY = [sys.executable, "-m", "belady"]
TESTS = Path(__file__).parents[1]
#: Nothing here takes that long, even on a busy machine.
LIMIT = 120


def environment(**more: str) -> dict[str, str]:
    """For programs that are not to use a GPU, or all cores, or to say much."""
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return os.environ | quiet | {"PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"} | more


def arguments(
    data: Path, levels: Iterable[str | Path], program: Iterable[str | Path], *options: str | Path
) -> list[str]:
    """The command line of `belady run`. A level without a size has 1 GiB."""
    sized = [str(level) if ":" in str(level) else f"{level}:1GiB" for level in levels]
    caches = [part for level in sized for part in ("--cache", level)]
    whole = [*BELADY, "run", "--data", data, *caches, *options, "--", *program]
    return [str(part) for part in whole]


def finished(
    data: Path,
    levels: Iterable[str | Path],
    program: Iterable[str | Path],
    *options: str | Path,
    status: int = 0,
    **more: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Runs a program to its end, which has to be with that status."""
    command = arguments(data, levels, program, *options)
    environ = environment(**more.pop("environ", {}))
    done = subprocess.run(command, capture_output=True, env=environ, timeout=LIMIT, **more)
    assert done.returncode == status, (
        done.returncode,
        done.stdout[-2000:],
        done.stderr.decode()[-4000:],
    )
    return done


def inside(name: str, data: Path, scratch: Path) -> list[str]:
    """The command line of a program of `inside`."""
    return [sys.executable, "-m", "transparent.inside", name, str(data), str(scratch)]


def copies(level: Path) -> dict[str, Path]:
    """The copies that a level holds, by their names in the dataset."""
    return {
        str(path.relative_to(files)): path
        for files in level.glob("*/files")
        for path in files.rglob("*")
        if path.is_file()
    }


def wait_for_copies(level: Path, names: Iterable[str]) -> None:
    """Returns when a level holds copies of all these files; they appear when they are whole."""
    wanted = set(names)
    until(
        lambda: wanted <= copies(level).keys(),
        lambda: f"no copies of {wanted - copies(level).keys()}",
    )


def until(
    condition: Callable[[], bool], otherwise: Callable[[], str] = lambda: "it never came true"
) -> None:
    """Returns when that is so, which the launcher brings about by itself."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.01)


def fill(data: Path, level: Path, *options: str | Path) -> None:
    """Makes a level warm: it holds a copy of every file, and no program runs."""
    names = [path for path in data.rglob("*") if path.is_file()]
    with tempfile.TemporaryDirectory() as scratch:
        program = inside("cat", data, Path(scratch) / "scratch")
        with Conversation(arguments(data, [level], program, *options)) as run:
            run.wait_for("epoch")
            run.wait_until_served(names, level)
            run.end()


class Conversation:
    """A program that prints a line, and continues after an answer."""

    def __init__(self, command: list[str], **environ: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the program)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(**environ),
        )

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            assert stream is not None
            stream.close()

    def wait_for(self, word: str) -> str:
        """What follows that word on the next line that begins with it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, _, rest = line.rstrip("\n").partition(" ")
            if first == word:
                return rest
        raise AssertionError(f"it ended without saying {word!r}: {self.errors()[-4000:]}")

    def read_until(self, word: str) -> str:
        """All that comes before a line that is that word; the end of the line before it is not part
        of it.
        """
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            if line == f"{word}\n":
                return "".join(lines).removesuffix("\n")
            lines.append(line)
        raise AssertionError(f"it ended without saying {word!r}: {self.errors()[-4000:]}")

    def tell(self, *words: str | Path) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def wait_until_served(self, paths: Iterable[Path], level: Path) -> None:
        """Returns when a program of `inside` gets copies if it opens these files."""
        with tempfile.NamedTemporaryFile("w") as names:
            names.write("".join(f"{path}\n" for path in paths))
            names.flush()
            self.tell("served", level, names.name)
            self.wait_for("served")

    def end(self) -> None:
        """Nothing more is to be done, and it ends well."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(LIMIT)
        assert status == 0, (status, self.errors()[-4000:])

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


def report(path: Path) -> dict[str, Any]:
    """What `--report-json` wrote."""
    made: dict[str, Any] = json.loads(path.read_text())
    return made
