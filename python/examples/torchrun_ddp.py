"""DistributedDataParallel under torchrun. Ranks find each other, and their caches are one cache.

    torchrun --nproc-per-node 4 torchrun_ddp.py /data/train

Run without torchrun it starts itself on two processes, with a small dataset. Each of them may keep
a little more than half of the dataset in RAM, so from the second epoch on nothing is read from the
source: what one process does not have, the other one has."""

from __future__ import annotations

import os
import sys

import shapes
import torch
import torch.distributed as together
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_single import decode, small_cnn

import belady

EPOCHS = 3


def train(path: str) -> None:
    together.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(small_cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = belady.open(path)  # rank 0 lists; the others get its list
    # batch_size is per rank, as in torch; the quota is for the node, and shared by its ranks.
    loader = belady.DataLoader(
        data, batch_size=16, shuffle=True, seed=0, epochs=EPOCHS, decode=decode, cache="ram:120KB"
    )
    for epoch in range(EPOCHS):
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
        engine = loader.stats()["engine"]
        # Most samples are pushed to the rank that reads them next, ahead of use.
        peers = engine["peers"]["taken"]["samples"] + engine["peers"]["read"]["samples"]
        moved = torch.tensor([engine["source"]["samples"], peers])
        together.all_reduce(moved)
        if together.get_rank() == 0:
            source, peers = moved.tolist()
            print(
                f"epoch {epoch}: loss {float(loss):.4f}, every sample was read once; so far "
                f"{source} came from the source and {peers} from a peer"
            )
    loader.close()
    together.destroy_process_group()


def main() -> None:
    if "RANK" in os.environ:
        train(sys.argv[1])
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", __file__, str(shapes.make())]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
