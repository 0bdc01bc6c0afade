"""What sections about the Python package need: its environment, and the other loaders."""

import dataclasses
import os
import subprocess

from .context import Context
from .process import ROOT, CommandFailed, run, say

# In which belady is installed, and which sees the packages of others.
PYTHON = ROOT / ".venv-bench" / "bin" / "python"
LOADERS = ROOT / "bench" / "loaders"
# What FFCV is built with, on Debian and Ubuntu.
LIBRARIES = ("libopencv-dev", "libturbojpeg0-dev", "pkg-config")


@dataclasses.dataclass
class PythonContext(Context):
    def __post_init__(self):
        super().__post_init__()
        if not PYTHON.exists():
            raise CommandFailed(
                f"{PYTHON} does not exist: run `make bench-environment`, which makes it"
            )

    def python(self, script, *options, **how):
        return run(self.commands, [PYTHON, script, *options], **how)

    def loader(self, script, *options, **how):
        """A program of bench/loaders."""
        return self.python(LOADERS / script, *options, **how)

    def ffcv_missing(self):
        """Why there is no FFCV here, after trying to install it; none if there is."""
        if imports("ffcv"):
            return None
        missing = [name for name in LIBRARIES if not installed(name)]
        if missing and os.geteuid() == 0:
            say(f"installing {', '.join(missing)}, which FFCV is built with")
            quietly("apt-get", "install", "--yes", "--no-install-recommends", *missing)
            missing = [name for name in LIBRARIES if not installed(name)]
        if missing:
            return f"FFCV is not here: it is built with {', '.join(missing)} (apt install)"
        where = subprocess.check_output(
            ["python3", ROOT / "scripts" / "python_env.py", "--bench", "--where"], text=True
        ).strip()
        say("building FFCV")
        quietly(
            f"{where}/bin/python",
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--requirement",
            ROOT / "python" / "requirements-ffcv.txt",
        )
        return None if imports("ffcv") else "FFCV is not here: it could not be built"


def imports(module):
    return subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True).returncode == 0


def installed(package):
    return quietly("dpkg", "--status", package)


def quietly(*command):
    """Whether a command ran to its end."""
    try:
        return subprocess.run([str(part) for part in command], capture_output=True).returncode == 0
    except OSError:
        return False
