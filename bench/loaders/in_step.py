"""belady.DataLoader on a class of job, by several processes in step, each with a cache of its own.

Takes a job as JSON, as bench/classes.py writes it. The processes meet in a directory; a step ends when
all of them have ended it. Prints as JSON what each step of each epoch asked for on all ranks together,
the samples' sizes, the source's counter after each epoch and each rank's `loader.stats()["engine"]`.
"""

import json
import multiprocessing
import os
import sys
import tempfile

EPOCHS = 6
# Nothing that is measured takes a tenth of it.
PATIENCE_SECONDS = 240


def main():
    job = json.loads(sys.argv[1])
    ranks = len(job["capacities"])
    # Each rank begins with nothing of belady loaded, as a process of its own.
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(ranks, timeout=PATIENCE_SECONDS)
    with tempfile.TemporaryDirectory(prefix="belady-classes-") as folder:
        told = [context.SimpleQueue() for _ in range(ranks)]
        processes = [
            context.Process(target=run, args=(job, rank, folder, barrier, told[rank]))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        found = [queue.get() for queue in told]
        for process in processes:
            process.join()
    if failed := [one for one in found if isinstance(one, str)]:
        sys.exit("\n".join(failed))
    json.dump(together(found), sys.stdout)


def run(job, rank, folder, barrier, told):
    try:
        told.put(read(job, rank, folder, barrier))
    except BaseException as error:  # the parent waits for an answer of each rank
        barrier.abort()
        told.put(f"rank {rank}: {type(error).__name__}: {error}")


def read(job, rank, folder, barrier):
    ranks = len(job["capacities"])
    # A process stands for a node.
    os.environ["BELADY_NODE"] = "off"
    if ranks > 1:
        os.environ |= {
            "BELADY_RANK": str(rank),
            "BELADY_RANKS": str(ranks),
            "BELADY_MEET": f"{folder}/meeting",
        }
    import belady

    # A quota is that of all processes of a machine, which divide it.
    options = {
        "cache": f"ram:{ranks * job['capacities'][rank]}",
        "epochs": EPOCHS,
        "seed": job["seed"],
        "staging": job["staging"],
    }
    data, order = opened(belady, job)
    loader = belady.DataLoader(
        data, batch_size=job["batch"] // ranks, drop_last=job["drop_last"], **order, **options
    )
    sizes, epochs, source = {}, [], []
    for _ in range(EPOCHS):
        steps = []
        for batch in loader:
            steps.append(list(batch.ids))
            sizes.update((number, len(sample)) for number, sample in zip(batch.ids, batch.samples))
            barrier.wait()
        epochs.append(steps)
        source.append(counter(job["folder"]))
        barrier.wait()
    engine = loader.stats()["engine"]
    barrier.wait()
    loader.close()
    # What ranks read ahead was read before the last step; after it nothing is.
    return {"epochs": epochs, "sizes": sizes, "source": source, "engine": engine}


def opened(belady, job):
    """What the loader reads, and the arguments that say in which order."""
    if job["order"] == "mixture":
        parts = [belady.open(f"{job['folder']}/{part}") for part in job["parts"]]
        return belady.Mixture(parts, job["weights"]), {}
    data = belady.open(job["folder"])
    if job["order"] == "weighted":
        return data, {"sampler": belady.Weighted(job["weights"])}
    return data, {"shuffle": True}


def counter(folder):
    with open(f"{folder}/.slowfs-stats") as file:
        return json.load(file)["bytes"]


def together(found):
    """A step's samples are those of all ranks."""
    epochs = [
        [[number for ids in step for number in ids] for step in zip(*epoch, strict=True)]
        for epoch in zip(*(rank["epochs"] for rank in found), strict=True)
    ]
    return {
        "epochs": epochs,
        "sizes": {number: size for rank in found for number, size in rank["sizes"].items()},
        "source": [max(counts) for counts in zip(*(rank["source"] for rank in found))],
        "engines": [rank["engine"] for rank in found],
    }


if __name__ == "__main__":
    main()
