"""Four processes under mpirun, which meet through MPI (mpi4py) and share one cache.

    mpirun -n 4 python mpi.py /data/train

Run without mpirun it starts itself on four processes, with a small dataset.
"""

from __future__ import annotations

import os
import sys

import shapes
from mpi4py import MPI

import belady

EPOCHS = 3


def read(path: str) -> None:
    world = MPI.COMM_WORLD
    data = belady.open(path)
    loader = belady.DataLoader(
        data, batch_size=8, shuffle=True, seed=0, epochs=EPOCHS, cache="ram:120KB"
    )
    for epoch in range(EPOCHS):
        seen = [sample for batch in loader for sample in batch.ids]
        whole = world.gather(seen)
        if whole is not None:
            assert sorted(sum(whole, [])) == list(range(len(data)))
            print(f"epoch {epoch}: {world.size} processes have read every sample once")
    engine = loader.stats()["engine"]
    # Most samples are pushed to the rank that reads them next, ahead of use.
    peers = world.reduce(engine["peers"]["taken"]["samples"] + engine["peers"]["read"]["samples"])
    source = world.reduce(engine["source"]["samples"])
    if world.rank == 0:
        print(f"{source} samples came from the source, and {peers} from a peer")
    loader.close()


def main() -> None:
    if MPI.COMM_WORLD.size > 1:
        read(sys.argv[1])
        return
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "4"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    MPI.Finalize()
    for name in [name for name in os.environ if name.startswith(("OMPI_", "PMIX_"))]:
        del os.environ[name]  # of this one process, which mpirun would take for its own
    os.execvp(command[0], [*command, sys.executable, __file__, str(shapes.make())])


if __name__ == "__main__":
    main()
