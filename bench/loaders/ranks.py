"""Several ranks of one node that read from a cache in RAM: their speed together, and their memory.

Takes a job as JSON, as bench/harness/node.py writes it. `mode` is `node` (one engine for all ranks),
`embedded` (an engine a rank, which are each other's peers), `torch` (torch's DataLoader, a worker a rank) or
`idle` (everything is imported and nothing read). The first epochs fill the cache and are not measured; ranks begin and end an
epoch together. Prints as JSON the seconds of the measured epochs, and the proportional memory of all
processes after them.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time

from tree import proportional_bytes

# Nothing that is measured takes a tenth of it.
PATIENCE_SECONDS = 240
# Epochs that fill the cache, and its last samples.
FILLING = 2


def main():
    job = json.loads(sys.argv[1])
    # Each rank begins with nothing of belady loaded, as a process of its own.
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(job["ranks"] + 1, timeout=PATIENCE_SECONDS)
    with tempfile.TemporaryDirectory(prefix="belady-ranks-") as folder:
        told = [context.SimpleQueue() for _ in range(job["ranks"])]
        processes = [
            context.Process(target=run, args=(job, rank, folder, barrier, told[rank]))
            for rank in range(job["ranks"])
        ]
        for process in processes:
            process.start()
        found = {}
        try:
            barrier.wait()
            found["memory"] = proportional_bytes(os.getpid())
            barrier.wait()
        except Exception:
            pass  # a rank says why
        ranks = [queue.get() for queue in told]
        for process in processes:
            process.join()
    if failed := [one for one in ranks if isinstance(one, str)]:
        sys.exit("\n".join(failed))
    seconds = [max(times) for times in zip(*(rank["seconds"] for rank in ranks), strict=True)]
    batches = [rank["batches"] for rank in ranks]
    json.dump({**found, "seconds": seconds, "batches": batches}, sys.stdout)


def run(job, rank, folder, barrier, told):
    try:
        told.put(read(job, rank, folder, barrier))
    except BaseException as error:  # the parent waits for an answer of each rank
        barrier.abort()
        told.put(f"rank {rank}: {type(error).__name__}: {error}")


def read(job, rank, folder, barrier):
    loader = LOADERS[job["mode"]](job, rank, folder)
    seconds, batches = [], 0
    together = Together(folder, rank, job["ranks"])
    for epoch in range(job["epochs"] if loader is not None else 0):
        together.wait()
        began = time.perf_counter()
        batches = sum(1 for _ in loader)
        if epoch >= FILLING:
            seconds.append(time.perf_counter() - began)
    barrier.wait()
    # The parent measures the memory of all.
    barrier.wait()
    return {"seconds": seconds, "batches": batches}


class Together:
    """A barrier of the ranks alone, by files: the parent sleeps meanwhile."""

    def __init__(self, folder, rank, ranks):
        self.folder, self.rank, self.ranks, self.turn = folder, rank, ranks, 0

    def wait(self):
        self.turn += 1
        open(f"{self.folder}/{self.turn}-{self.rank}", "w").close()
        until = time.monotonic() + PATIENCE_SECONDS
        while not all(
            os.path.exists(f"{self.folder}/{self.turn}-{rank}") for rank in range(self.ranks)
        ):
            if time.monotonic() > until:
                raise TimeoutError("another rank has not come")
            time.sleep(0.0005)


def belady_loader(job, rank, folder):
    if job["ranks"] > 1:
        os.environ |= {
            "BELADY_RANK": str(rank),
            "BELADY_RANKS": str(job["ranks"]),
            "BELADY_MEET": f"{folder}/meeting",
        }
    os.environ["BELADY_NODE"] = "on" if job["mode"] == "node" else "off"
    import belady

    data = belady.open(job["folder"], format="flat")
    engine = belady.Engine(cache=f"ram:{job['cache']}", threads=job["threads"])
    loader = belady.DataLoader(
        data,
        batch_size=job["batch"],
        shuffle=True,
        seed=0,
        epochs=job["epochs"],
        engine=engine,
        staging=job["staging"],
    )
    has_node = loader.engine.node is not None
    if has_node != (job["mode"] == "node"):
        raise RuntimeError(f"mode {job['mode']}, and the node's engine is used: {has_node}")
    return loader


class Files:
    """A folder of files, as torch takes datasets."""

    def __init__(self, folder):
        self.folder, self.files = folder, sorted(os.listdir(folder))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, at):
        with open(f"{self.folder}/{self.files[at]}", "rb") as file:
            return file.read()


def torch_loader(job, rank, folder):
    import torch.utils.data as of_torch

    data = Files(job["folder"])
    sampler = of_torch.DistributedSampler(data, job["ranks"], rank, seed=0)
    return of_torch.DataLoader(
        data,
        batch_size=job["batch"],
        sampler=sampler,
        num_workers=1,
        collate_fn=list,
        persistent_workers=True,
    )


def idle(job, rank, folder):
    import belady

    belady.open(job["folder"], format="flat")


LOADERS = {"node": belady_loader, "embedded": belady_loader, "torch": torch_loader, "idle": idle}

if __name__ == "__main__":
    main()
