"""Makes the environment that the Python tests run in.

There are two of them. The packages of others (torch, JAX, TensorFlow and so on, some gigabytes)
are installed once into a cache directory, under a name that follows from the list of
requirements; every checkout shares them. A checkout itself has a light `.venv` that sees these
packages through a .pth file and that belady is installed into.

    python3 scripts/python_env.py            # make both, or do nothing if they are there
    python3 scripts/python_env.py --where    # only say where the shared one is or would be
    python3 scripts/python_env.py --mpi      # and .venv-mpi, for a build of belady with MPI
    python3.13 scripts/python_env.py --own   # .venv-3.13 instead of .venv, and packages for this Python
    python3 scripts/python_env.py --bench    # those of `make bench`: .venv-bench

The benchmarks have loaders of others beside the packages of the tests, some of them with older
versions; theirs is a third environment, laid over the shared one of the tests.

It may be killed at any time, and run twice at the same time: an environment counts when its last
file is there, and one run makes it while others wait.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Written last: what has it is whole.
COMPLETE = "complete"


@dataclass(frozen=True)
class Environment:
    """A list of requirements, and the checkout's own environment that sees what it names."""

    name: str
    requirements: Path
    local: Path
    # Its packages are seen too, behind those of this one.
    over: "Environment | None" = None

    @property
    def key(self) -> bytes:
        """What the packages follow from: the lines of the lists for this Python, and its kind."""
        kind = f"{sys.implementation.cache_tag} {platform.machine()} {sys.base_prefix}"
        below = self.over.key if self.over else kind.encode()
        return below + applicable(self.requirements.read_text()).encode()

    @property
    def shared(self) -> Path:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        short = hashlib.sha256(self.key).hexdigest()[:16]
        return Path(cache) / "belady-dev" / f"{self.name}-{short}"

    @property
    def link(self) -> str:
        """What the .pth file says: where packages are, first those that come first."""
        return f"{packages(self.shared)}\n" + (self.over.link if self.over else "")


TEST = Environment("python", ROOT / "python" / "requirements-test.txt", ROOT / ".venv")
# The same packages; only belady is another.
MPI = Environment(TEST.name, TEST.requirements, ROOT / ".venv-mpi")
# The same list, for a Python that may be another than that of .venv.
OWN = Environment(
    TEST.name, TEST.requirements, ROOT / f".venv-{sys.version_info.major}.{sys.version_info.minor}"
)
BENCH = Environment(
    "bench", ROOT / "python" / "requirements-bench.txt", ROOT / ".venv-bench", over=TEST
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--where", action="store_true", help="only say where the packages are")
    arguments.add_argument("--mpi", action="store_true", help="also one for a build with MPI")
    arguments.add_argument("--own", action="store_true", help="one that is named after this Python's version")
    arguments.add_argument("--bench", action="store_true", help="the environment of the benchmarks")
    wanted = arguments.parse_args()
    check_python()
    if wanted.where:
        print((BENCH if wanted.bench else TEST).shared)
        return
    make(OWN if wanted.own else TEST)
    if wanted.mpi:
        make(MPI)
    if wanted.bench:
        make(BENCH)


# The two markers that lists may have.
MARKED = re.compile(r'(.*); python_version (<|>=) "3\.(\d+)"\n')


def applicable(requirements: str, minor: int = sys.version_info.minor) -> str:
    """The lines that hold for a Python 3, without their markers. A line for another one changes nothing."""
    lines = []
    for line in requirements.splitlines(keepends=True):
        if marked := MARKED.fullmatch(line):
            line, than, bound = f"{marked[1]}\n", marked[2], int(marked[3])
            if (minor < bound) != (than == "<"):
                continue
        lines.append(line)
    return "".join(lines)


def make(environment: Environment) -> None:
    shared = environment.shared
    if (shared / COMPLETE).exists() and is_linked(environment):
        return
    shared.parent.mkdir(parents=True, exist_ok=True)
    with alone(shared):
        if not (shared / COMPLETE).exists():
            make_shared(environment)
        if not is_linked(environment):
            make_local(environment)


def check_python() -> None:
    if sys.version_info < (3, 11):
        fail(f"Python {platform.python_version()} is too old: belady needs 3.11 or later. "
             "Say which one to use: make PYTHON=python3.12 test")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail("this Python cannot make environments. On Debian and Ubuntu: apt install python3-venv")


def make_shared(environment: Environment) -> None:
    shared = environment.shared
    if shared.exists():
        say(f"{shared} was left half made; starting again")
        shutil.rmtree(shared)
    began = time.monotonic()
    say(f"installing the packages of {environment.requirements.relative_to(ROOT)} into {shared}")
    say("some gigabytes, a few minutes, once for all checkouts")
    run(sys.executable, "-m", "venv", shared)
    if environment.over:
        # pip then installs only what is not there, or there in another version.
        link_file(shared).write_text(environment.over.link)
    run(shared / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check",
        "--requirement", environment.requirements)
    (shared / COMPLETE).touch()
    say(f"done in {time.monotonic() - began:.0f} s")
    for other in shared.parent.glob(f"{environment.name}-*/"):
        if other != shared:
            say(f"{other} is of another list or Python; remove it if no checkout needs it")


def is_linked(environment: Environment) -> bool:
    link = link_file(environment.local)
    return link.exists() and link.read_text() == environment.link


def make_local(environment: Environment) -> None:
    local = environment.local
    say(f"making {local.relative_to(ROOT)}, which sees {environment.shared}")
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", local)
    link_file(local).write_text(environment.link)


def link_file(environment: Path) -> Path:
    return packages(environment) / "belady-dev.pth"


def packages(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


@contextmanager
def alone(shared: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
    with open(shared.with_suffix(".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run is making {shared}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command])
    if done.returncode != 0:
        fail(f"`{' '.join(map(str, command))}` failed; run it again once what it says is mended")


def say(sentence: str) -> None:
    print(f"python_env: {sentence}", file=sys.stderr, flush=True)


def fail(sentence: str) -> None:
    say(sentence)
    sys.exit(1)


if __name__ == "__main__":
    main()
