"""Makes the environment that the Python tests run in.

There are two of them. The packages of others (torch, JAX, TensorFlow and so on, some gigabytes)
are installed once into a cache directory, under a name that follows from the list of
requirements; every checkout shares them. A checkout itself has a light `.venv` that sees these
packages through a .pth file and that belady is installed into.

    python3 scripts/python_env.py            # make both, or do nothing if they are there
    python3 scripts/python_env.py --where    # only say where the shared one is or would be

It may be killed at any time, and run twice at the same time: an environment counts when its last
file is there, and one run makes it while others wait.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "python" / "requirements-test.txt"
LOCAL = ROOT / ".venv"
# Written last: what has it is whole.
COMPLETE = "complete"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--where", action="store_true", help="only say where the packages are")
    wanted = arguments.parse_args()
    check_python()
    shared = shared_directory()
    if wanted.where:
        print(shared)
        return
    if (shared / COMPLETE).exists() and is_linked(shared):
        return
    shared.parent.mkdir(parents=True, exist_ok=True)
    with alone(shared):
        if not (shared / COMPLETE).exists():
            make_shared(shared)
        if not is_linked(shared):
            make_local(shared)


def check_python() -> None:
    if sys.version_info < (3, 11):
        fail(f"Python {platform.python_version()} is too old: belady needs 3.11 or later. "
             "Say which one to use: make PYTHON=python3.12 test")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail("this Python cannot make environments. On Debian and Ubuntu: apt install python3-venv")


def shared_directory() -> Path:
    """One for each list of requirements and each kind of Python."""
    kind = f"{sys.implementation.cache_tag} {platform.machine()} {sys.base_prefix}"
    key = hashlib.sha256(kind.encode() + REQUIREMENTS.read_bytes()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "belady-dev" / f"python-{key}"


def make_shared(shared: Path) -> None:
    if shared.exists():
        say(f"{shared} was left half made; starting again")
        shutil.rmtree(shared)
    began = time.monotonic()
    say(f"installing the packages of {REQUIREMENTS.relative_to(ROOT)} into {shared}")
    say("some gigabytes, a few minutes, once for all checkouts")
    run(sys.executable, "-m", "venv", shared)
    run(shared / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check",
        "--requirement", REQUIREMENTS)
    (shared / COMPLETE).touch()
    say(f"done in {time.monotonic() - began:.0f} s")
    for other in shared.parent.glob("python-*/"):
        if other != shared:
            say(f"{other} is of another list; remove it if no checkout needs it")


def is_linked(shared: Path) -> bool:
    link = link_file()
    return link is not None and link.exists() and link.read_text() == f"{packages(shared)}\n"


def make_local(shared: Path) -> None:
    say(f"making {LOCAL.relative_to(ROOT)}, which sees {shared}")
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", LOCAL)
    link = link_file()
    if link is None:
        fail(f"{LOCAL} has no place for packages; remove it and try again")
    link.write_text(f"{packages(shared)}\n")


def link_file() -> Path | None:
    found = sorted(LOCAL.glob("lib/python*/site-packages"))
    return found[0] / "belady-dev.pth" if found else None


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
