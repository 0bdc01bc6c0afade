"""DistributedDataParallel on two processes. Ranks are found by themselves.

Run it as it is, or with `torchrun --nproc-per-node 2 torch_ddp.py`.
"""

from __future__ import annotations

import os
import socket

import shapes
import torch
import torch.distributed as together
import torch.multiprocessing as processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_single import decode, small_cnn

import belady


def train(path: str) -> None:
    together.init_process_group("gloo")
    rank = together.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(small_cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = belady.open(path)
    # batch_size is per rank, as in torch; the quota is for the node, and shared by its ranks.
    loader = belady.DataLoader(
        data, batch_size=16, shuffle=True, seed=0, decode=decode, cache="ram:1MiB"
    )
    for epoch in range(2):
        seen = []
        for batch in loader:
            images, labels = batch
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += batch.ids
        counts = torch.bincount(torch.tensor(seen), minlength=len(data))
        together.all_reduce(counts)
        assert counts.tolist() == [1] * len(data)
        if rank == 0:
            print(f"epoch {epoch}: loss {float(loss):.4f}, every sample was read once")
    loader.close()
    together.destroy_process_group()


def started(rank: int, port: int, path: str) -> None:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    train(path)


def main() -> None:
    path = str(shapes.make())
    if "RANK" in os.environ:
        train(path)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes.spawn(started, args=(port, path), nprocs=2)


if __name__ == "__main__":
    main()
