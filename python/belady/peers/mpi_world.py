"""Meeting through MPI, by mpi4py.

Rank 0 gathers and hands out, with messages that nobody has to wait for in a call of MPI: a blocked
call burns a core and cannot be interrupted, and a collective one does not say who is missing.
"""

from __future__ import annotations

import sys
from typing import Any

from ..errors import BeladyError
from .meeting import Meeting, Patience

#: Of messages to rank 0 and from it.
_TO_ROOT, _FROM_ROOT = 1, 2


class MpiWorld(Meeting):
    """All processes of an MPI job."""

    #: MPI moves messages only while it is called, and what all ranks do together takes tens of calls.
    #: A look is not a request to a server, and takes microseconds.
    longest_pause = 0.002

    def __init__(self, world: Any) -> None:
        super().__init__(world.Get_rank(), world.Get_size())
        self.place = "MPI's world"
        self._public = world
        #: A communicator in which messages of ours meet nobody else's; made by all ranks together.
        self._world: Any = None
        self._sent: list[Any] = []

    def exchange(self, name: str, mine: bytes, limit: float) -> list[bytes]:
        patience = Patience(self, name, limit)
        if self._world is None:
            own, made = self._public.Idup()
            while not made.Test():
                patience.pause(None)
            self._world = own
        given = (self._hand_out if self.rank == 0 else self._hand_in)(name, mine, patience)
        # A large message leaves only while MPI is called, from memory that has to stay.
        while not self._all_sent():
            patience.pause(None)
        return given

    def _hand_in(self, name: str, mine: bytes, patience: Patience) -> list[bytes]:
        self._send((self.rank, name, mine), 0, _TO_ROOT)
        while not self._world.iprobe(source=0, tag=_FROM_ROOT):
            patience.pause([0])
        exchanged, given = self._world.recv(source=0, tag=_FROM_ROOT)
        if isinstance(given, str):
            raise BeladyError(given)
        if exchanged != name:
            raise BeladyError(
                f"rank 0 exchanges {exchanged} and rank {self.rank} exchanges {name}; every rank "
                "has to make the same loaders in the same order"
            )
        return list(given)

    def _hand_out(self, name: str, mine: bytes, patience: Patience) -> list[bytes]:
        given = {0: mine}
        try:
            while len(given) < self.size:
                message = self._world.improbe(tag=_TO_ROOT)  # of any rank
                if message is None:
                    patience.pause([rank for rank in range(self.size) if rank not in given])
                    continue
                rank, exchanged, value = message.recv()
                if exchanged != name:
                    raise BeladyError(
                        f"rank 0 exchanges {name} and rank {rank} exchanges {exchanged}; every rank "
                        "has to make the same loaders in the same order"
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
    """MPI's world, if the program uses mpi4py, or was started by mpirun and mpi4py is there."""
    if "mpi4py.MPI" not in sys.modules and not launched_by_mpi:
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # it is not there, or finds no MPI
        return None
    if not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
        return None
    return MpiWorld(MPI.COMM_WORLD)
