"""The `belady` command: `belady read ...`, or `python -m belady read ...`."""

import signal
import sys

from belady import _native


def main() -> None:
    """Runs the command with the program's arguments and exits with its status."""
    # The command runs outside of Python, where Python's own handler would wait for it to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
