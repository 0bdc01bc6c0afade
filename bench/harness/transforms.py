"""Policies beside each other where threads also decode: JPEGs behind a slow source, for eight ranks.

As in the section `balance`, and beside the policies stands `staging` with fixed pools: three threads of
each rank load, as many as there are cores transform. What the simulator knows of the transforms is measured
first, on pictures that are all in memory. On fewer than 16 cores all rates are so much lower; the dataset
is smaller too, so that a run does not take too long.
"""

import dataclasses
import json
import os
import statistics

from .balance import OFF_SIMULATED, RANKS, Setup, measured
from .mount import HDMLP_4
from .process import ROOT, CommandFailed
from .shift import STEPS
from .table import rate, spread, verdict

FIXED = "staging,loading_threads=3"
POLICIES = {
    FIXED: "staging, fixed pools",
    "staging": "staging",
    "nopfs": "nopfs",
    "lobster": "lobster",
    "belady": "belady",
}
# What the figures below are for.
CORES = 16
IMAGES = 9_000
BATCH = 16
EPOCHS = 3
# Of t(γ) of hdmlp-4: a source that the ranks wait for with a cache of 30 %, and hardly with one of 60 %.
FACTOR = 1.75
CONSUME = 80e6
STAGING = 8 << 20
# Two of the largest batches need almost so much.
LEAST_STAGING = 4 << 20
# Of the measurement of transforms: enough that the first, which fills the cache, can be left out.
WARM_EPOCHS = 5
CHAIN = ("--transform", json.dumps(STEPS))


def transforms(context):
    """Policies where samples are transformed."""
    cores = len(os.sched_getaffinity(0))
    share = min(1, cores / CORES)
    smaller = share**0.5
    folder = context.folder / "varied"
    images = round(smaller * IMAGES)
    context.python(ROOT / "bench" / "loaders" / "varied_images.py", folder, images)
    setup = Setup(
        name="transforms",
        batch=BATCH,
        consume=share * CONSUME,
        curve={n: round(FACTOR * share * value, 1) for n, value in HDMLP_4.items()},
        # Three a rank that load; the others transform where pools are fixed.
        threads=3 * RANKS + cores,
        staging=max(round(smaller * STAGING), LEAST_STAGING),
        epochs=EPOCHS,
        transform=CHAIN,
    )
    speeds = [transformed(context, folder / "pictures", setup) for _ in range(context.runs)]
    section = measured(
        context, with_speed(setup, speeds, cores), folder / "pictures", POLICIES, judged
    )
    section.note(
        f"JPEGs of 400 kinds, decoded, resized to 224 × 224 and turned into float32. Transforms alone, of pictures "
        f"in memory: {spread(speeds, rate)} on {cores} cores, which is what the simulator knows of them; so many "
        "threads reach it, and fewer in proportion. *Fixed pools*: 3 threads of each rank load and "
        f"{cores} transform for all of them (`{FIXED}`). The other policies begin with {setup.threads} that load "
        f"and {cores} that transform, and `lobster` and `belady` move them."
    )
    return section


def with_speed(setup, speeds, cores):
    """The setup with what was measured of all cores as the speed of so many threads, or more."""
    speed = statistics.median(speeds)
    curve = f'[[1, "{speed / cores:.0f} B/s"], [{cores}, "{speed:.0f} B/s"]]'
    preprocess = f'[{{ size = "40 KB", throughput = {curve} }}]'
    return dataclasses.replace(setup, preprocess=preprocess)


def transformed(context, pictures, setup):
    """What the machine transforms in a second, in bytes read, where nothing else holds it up."""
    total = sum(file.stat().st_size for file in pictures.iterdir())
    report = context.belady(
        "read",
        pictures,
        *("--format", "flat", "--batch", setup.batch, "--seed", 0, "--order", "torch"),
        *("--epochs", WARM_EPOCHS, "--local-ranks", RANKS, "--staging", f"{setup.staging}B"),
        *("--threads", setup.threads, "--cache", f"ram:{2 * total}B", *setup.transform, "--json"),
    ).json
    if not report["order_ok"]:
        raise CommandFailed("belady read delivered samples out of order")
    later = report["epochs"][1:]
    return sum(epoch["bytes"] for epoch in later) / sum(epoch["seconds"] for epoch in later)


def judged(rows):
    verdicts = {
        policy: [verdict(abs(row.off_simulated) <= OFF_SIMULATED, "simulate ± 10 %")]
        for policy, row in rows.items()
    }
    belady = rows["belady"]
    ahead = all(belady.time <= max(rows[other].times) for other in ("nopfs", "lobster"))
    verdicts["belady"].append(verdict(ahead, "ahead of both within noise"))
    return {policy: ", ".join(texts) for policy, texts in verdicts.items()}
