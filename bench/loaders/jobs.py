"""Programs of one rank that read one dataset at once, with the engine of the node.

Takes the folder, the seed of each program and the bytes of a staging buffer as JSON; prints the seconds of
each.
"""

import json
import multiprocessing
import sys
import time

EPOCHS = 3
BATCH = 32
# What a program does with a batch.
COMPUTE_SECONDS = 0.001


def main():
    job = json.loads(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(job["seeds"]), timeout=240)
    told = context.SimpleQueue()
    programs = [
        context.Process(target=read, args=(job["folder"], job["staging"], seed, barrier, told))
        for seed in job["seeds"]
    ]
    for program in programs:
        program.start()
    found = [told.get() for _ in programs]
    for program in programs:
        program.join()
    if failed := [one for one in found if isinstance(one, str)]:
        sys.exit("\n".join(failed))
    json.dump({"seconds": found}, sys.stdout)


def read(folder, staging, seed, barrier, told):
    try:
        import belady

        data = belady.open(folder, format="flat")
        barrier.wait()
        began = time.perf_counter()
        loader = belady.DataLoader(
            data, batch_size=BATCH, shuffle=True, seed=seed, epochs=EPOCHS, staging=staging
        )
        if loader.engine.node is None:
            raise RuntimeError("the engine of the node is not used")
        for _ in range(EPOCHS):
            for _ in loader:
                time.sleep(COMPUTE_SECONDS)
        told.put(time.perf_counter() - began)
    except BaseException as error:  # the parent waits for an answer of each program
        barrier.abort()
        told.put(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
