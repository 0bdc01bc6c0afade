"""Starts the process of a node engine, and runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from .. import _native
from ..errors import BeladyError

#: The program of the process: it finds this package where the rank has found it.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from belady._node.process import run; run(sys.argv[2])"
)


def start(name: str) -> str:
    """Starts a node engine; returns the path of its socket."""
    if not sys.executable:
        raise BeladyError("this program does not know its Python, so it cannot start another one")
    package = str(Path(__file__).resolve().parents[2])
    return _native.start_node(name, sys.executable, ["-c", _PROGRAM, package])


def run(socket: str) -> None:
    """Serves the ranks of this node until the last one has gone."""
    _native.serve_node(socket)
