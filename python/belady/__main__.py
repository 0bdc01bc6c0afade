"""The `belady` command: `python -m belady read ...` is `belady read ...`."""

import os
import sys
import sysconfig
from pathlib import Path


def find_command() -> Path:
    """Returns the `belady` program that was installed with this package.

    It lies with the other scripts of the environment; of a user's own installation or of
    `pip install --target`, with the scripts of that one.
    """
    folders = [
        Path(sysconfig.get_path("scripts")),
        Path(sysconfig.get_path("scripts", scheme=sysconfig.get_preferred_scheme("user"))),
        Path(__file__).resolve().parent.parent / "bin",
    ]
    for folder in folders:
        command = folder / "belady"
        if command.is_file():
            return command
    raise SystemExit(
        "belady: this installation has no `belady` program; install the package from a wheel, or "
        "in a checkout by `make develop`"
    )


if __name__ == "__main__":
    # Not a child: the command gets the terminal, signals and the exit status to itself.
    command = find_command()
    os.execv(command, [str(command), *sys.argv[1:]])
