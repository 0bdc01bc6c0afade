"""Rendezvous through MPI, by mpi4py.

Rank 0 gathers and distributes by non-blocking messages: a blocking call of MPI uses a core and
cannot be interrupted, and a collective call does not tell which ranks are missing."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import BeladyError
from .rendezvous import Rendezvous, Wait

#: Of messages to rank 0 and from it.
_TO_ROOT, _FROM_ROOT = 1, 2


class MpiWorld(Rendezvous):
    """All processes of an MPI job."""

    #: MPI makes progress only while it is called, and a collective step takes tens of calls. A look
    #: takes microseconds, since it asks no server.
    longest_pause = 0.002

    def __init__(self, world: Any) -> None:
        super().__init__(world.Get_rank(), world.Get_size())
        self.place = "MPI's world"
        self._public = world
        #: A communicator for our messages alone; all ranks make it together.
        self._world: Any = None
        self._sent: list[Any] = []

    def exchange(self, name: str, mine: bytes, limit: float) -> list[bytes]:
        wait = Wait(self, name, limit)
        if self._world is None:
            own, made = self._public.Idup()
            while not made.Test():
                wait.pause(None)
            self._world = own
        given = (self._distribute if self.rank == 0 else self._send_and_receive)(name, mine, wait)
        # A large message is sent only while MPI is called, from memory that has to stay.
        while not self._all_sent():
            wait.pause(None)
        return given

    def _send_and_receive(self, name: str, mine: bytes, wait: Wait) -> list[bytes]:
        self._send((self.rank, name, mine), 0, _TO_ROOT)
        while not self._world.iprobe(source=0, tag=_FROM_ROOT):
            wait.pause([0])
        exchanged, given = self._world.recv(source=0, tag=_FROM_ROOT)
        if isinstance(given, str):
            raise BeladyError(given)
        if exchanged != name:
            raise BeladyError(
                f"rank 0 exchanges {exchanged} and rank {self.rank} exchanges {name}; every rank "
                "has to make the same loaders in the same order"
            )
        return list(given)

    def _distribute(self, name: str, mine: bytes, wait: Wait) -> list[bytes]:
        given = {0: mine}
        try:
            while len(given) < self.size:
                message = self._world.improbe(tag=_TO_ROOT)  # of any rank
                if message is None:
                    wait.pause([rank for rank in range(self.size) if rank not in given])
                    continue
                rank, exchanged, value = message.recv()
                if exchanged != name:
                    raise BeladyError(
                        f"rank 0 exchanges {name} and rank {rank} exchanges {exchanged}; every "
                        "rank has to make the same loaders in the same order"
                    )
                given[rank] = value
        except BeladyError as error:
            for rank in range(1, self.size):
                self._send((name, str(error)), rank, _FROM_ROOT)
            raise
        whole = [given[rank] for rank in range(self.size)]
        for rank in range(1, self.size):
            self._send((name, whole), rank, _FROM_ROOT)
        return whole

    def _send(self, message: Any, to: int, tag: int) -> None:
        self._sent.append(self._world.isend(message, dest=to, tag=tag))

    def _all_sent(self) -> bool:
        self._sent = [request for request in self._sent if not request.Test()]
        return not self._sent


def of_mpi4py(launched_by_mpi: bool) -> MpiWorld | None:
    """Returns MPI's world, if the program uses mpi4py, or mpirun launched it and mpi4py is
    installed.
    """
    if "mpi4py.MPI" not in sys.modules and not launched_by_mpi:
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # not installed, or it finds no MPI
        return None
    if not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
        return None
    return MpiWorld(MPI.COMM_WORLD)
