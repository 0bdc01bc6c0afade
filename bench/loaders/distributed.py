"""torch's DataLoader with a DistributedSampler on files, by several processes at a fixed pace.

Takes batches as `belady read --barrier --consume` does: each batch is computed on for its bytes / rate
seconds, and a step ends when all ranks have ended it (a barrier of torch.distributed, over gloo).
Prints seconds, bytes and waits of each epoch.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Files(Dataset):
    """A sample is the bytes of a file, in the order of names."""

    def __init__(self, folder):
        self.paths = sorted(
            entry.path for entry in os.scandir(folder) if not entry.name.startswith(".")
        )

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, at):
        # One read a file: `read_bytes` makes another to see that it has ended.
        file = os.open(self.paths[at], os.O_RDONLY)
        try:
            return torch.frombuffer(
                bytearray(os.read(file, os.fstat(file).st_size)), dtype=torch.uint8
            )
        finally:
            os.close(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--meet", required=True, help="HOST:PORT at which rank 0 listens")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--consume", type=float, required=True, help="bytes a second")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{args.meet}", rank=args.rank, world_size=args.ranks
    )
    dataset = Files(args.folder)
    sampler = DistributedSampler(dataset, args.ranks, args.rank, seed=args.seed)
    loader = DataLoader(
        dataset,
        args.batch,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=True,
        collate_fn=list,
    )
    dist.barrier()
    print(
        json.dumps(
            {
                "epochs": [
                    epoch(loader, sampler, number, args.consume) for number in range(args.epochs)
                ]
            }
        )
    )
    dist.destroy_process_group()


def epoch(loader, sampler, number, consume):
    sampler.set_epoch(number)
    start, total, waited = time.perf_counter(), 0, 0.0
    asked = start
    for batch in loader:
        had = time.perf_counter()
        waited += had - asked
        size = sum(len(sample) for sample in batch)
        total += size
        time.sleep(max(0.0, had + size / consume - time.perf_counter()))
        dist.barrier()
        asked = time.perf_counter()
    return {
        "epoch": number,
        "seconds": time.perf_counter() - start,
        "bytes": total,
        "stall_seconds": waited,
    }


if __name__ == "__main__":
    main()
