"""Makes the Python environments of tests, benchmarks and the demo.

Third-party packages (torch, JAX, TensorFlow and so on, some gigabytes) are installed once into a cache
directory, under a name that follows from the list of requirements; all checkouts share them. A checkout
has a light `.venv`, which sees these packages through a .pth file and which belady is installed into.

    python3 scripts/python_env.py            # make both, or do nothing if they are there
    python3 scripts/python_env.py --where    # only say where the shared one is or would be
    python3 scripts/python_env.py --mpi      # and .venv-mpi, for a build of belady with MPI
    python3.13 scripts/python_env.py --own   # .venv-3.13 instead of .venv, and packages for this Python
    python3 scripts/python_env.py --bench    # those of `make bench`: .venv-bench
    python3 scripts/python_env.py --lint     # the programs of `make lint`, a few megabytes
    python3 scripts/python_env.py --demo     # that of `make demo`: .venv-demo, a few megabytes

The benchmarks need other loaders beside the packages of the tests, some of them in older versions. Their
environment is laid over the shared one of the tests. The demo uses torch where it is in reach, in the
shared environment of the tests or in this Python, and installs only NumPy where it is not.

It may be killed at any time, and run twice at the same time: an environment counts when its last
file is there, and one run makes it while others wait.
"""

import argparse
import fcntl
import hashlib
import importlib.util
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
    # None where it is a place for programs alone.
    local: Path | None
    # Its packages are seen too, behind those of this one.
    over: "Environment | None" = None
    # Packages of this Python are seen too.
    system: bool = False
    size: str = "some gigabytes, a few minutes, once for all checkouts"

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
# Only programs, which no environment of a checkout has to see.
LINT = Environment(
    "lint", ROOT / "python" / "requirements-lint.txt", local=None, size="a few megabytes"
)
BENCH = Environment(
    "bench", ROOT / "python" / "requirements-bench.txt", ROOT / ".venv-bench", over=TEST
)


def demo() -> Environment:
    """The environment of `make demo`: that of the tests if it is there, else a small one."""
    local = ROOT / ".venv-demo"
    if (TEST.shared / COMPLETE).exists():
        return Environment(TEST.name, TEST.requirements, local)
    has_torch = importlib.util.find_spec("torch") is not None
    requirements = ROOT / "python" / "requirements-demo.txt"
    return Environment("demo", requirements, local, system=has_torch, size="a few megabytes")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--where", action="store_true", help="only say where the packages are")
    arguments.add_argument("--mpi", action="store_true", help="also one for a build with MPI")
    arguments.add_argument(
        "--own", action="store_true", help="one that is named after this Python's version"
    )
    arguments.add_argument("--bench", action="store_true", help="the environment of the benchmarks")
    arguments.add_argument("--lint", action="store_true", help="only the programs of `make lint`")
    arguments.add_argument("--demo", action="store_true", help="only the environment of the demo")
    wanted = arguments.parse_args()
    check_python()
    if wanted.where:
        print((BENCH if wanted.bench else LINT if wanted.lint else TEST).shared)
        return
    if wanted.demo or wanted.lint:
        make(LINT if wanted.lint else demo())
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
    if sys.version_info < (3, 11):  # noqa: UP036 (any Python may start this script)
        fail(
            f"Python {platform.python_version()} is too old: belady needs 3.11 or later. "
            "Say which one to use: make PYTHON=python3.12 test"
        )
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
    say(environment.size)
    run(sys.executable, "-m", "venv", shared)
    if environment.over:
        # pip then installs only what is not there, or there in another version.
        link_file(shared).write_text(environment.over.link)
    run(
        shared / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--requirement",
        environment.requirements,
    )
    (shared / COMPLETE).touch()
    say(f"done in {time.monotonic() - began:.0f} s")
    for other in shared.parent.glob(f"{environment.name}-*/"):
        if other != shared:
            say(f"{other} is of another list or Python; remove it if no checkout needs it")


def is_linked(environment: Environment) -> bool:
    if environment.local is None:
        return True
    link = link_file(environment.local)
    return link.exists() and link.read_text() == environment.link and sees_system(environment)


def sees_system(environment: Environment) -> bool:
    """Whether the local environment sees this Python's packages exactly if it has to."""
    config = (environment.local / "pyvenv.cfg").read_text()
    return ("include-system-site-packages = true" in config) == environment.system


def make_local(environment: Environment) -> None:
    local = environment.local
    assert local is not None
    say(f"making {local.relative_to(ROOT)}, which sees {environment.shared}")
    system = ["--system-site-packages"] if environment.system else []
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", *system, local)
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
        fail(f"`{' '.join(map(str, command))}` failed; run it again when its error is fixed")


def say(sentence: str) -> None:
    print(f"python_env: {sentence}", file=sys.stderr, flush=True)


def fail(sentence: str) -> None:
    say(sentence)
    sys.exit(1)


if __name__ == "__main__":
    main()
