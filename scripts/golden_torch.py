#!/usr/bin/env python3
"""Asks a real torch for the orders that belady-control must reproduce.

    python scripts/golden_torch.py            # writes crates/control/tests/golden/*.json
    python scripts/golden_torch.py --check    # says whether they would change

Small orders are written out; large ones as length, fingerprint and some entries.
Beside orders drawn from one generator stands a hash of the generator's state after
the epoch, which catches draws whose results are not seen. Deterministic; takes some
minutes and 3 GiB for the permutations at randperm's threshold.
"""

import argparse
import itertools
import json
import pathlib
import struct
import sys

import numpy
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
)

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "crates/control/tests/golden"
WHOLE = 64  # orders up to this length are written out
SEEDS = [0, 1, 42, 12345, -1, -(2**63), 2**31, 2**32 - 1, 2**32, 2**32 + 7, 2**63, 2**64 - 1]


def fnv(words):
    """FNV-1a, 64 bits, over 32-bit words: one multiplication a word, not a byte."""
    value = 0xCBF29CE484222325
    for word in words:
        value = ((value ^ word) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def fingerprint(order):
    """For orders too long for a loop in Python: sums, which wrap at 2^64."""
    order = numpy.asarray(order, dtype=numpy.uint64)
    total = 0
    # In pieces: the weights would otherwise need as much memory again.
    for start in range(0, len(order), 1 << 22):
        piece = order[start : start + (1 << 22)]
        odd = 2 * (numpy.arange(start, start + len(piece), dtype=numpy.uint64)) + 1
        mixed = (piece + odd) * numpy.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> numpy.uint64(32))) * odd
        total = (total + int(mixed.sum(dtype=numpy.uint64))) & 0xFFFFFFFFFFFFFFFF
    return total


def describe(order):
    order = (
        order.numpy()
        if isinstance(order, torch.Tensor)
        else numpy.asarray(order, dtype=numpy.int64)
    )
    n = len(order)
    if n <= WHOLE:
        return {"order": order.tolist()}
    spots = sorted({0, 1, 2, n // 7, n // 3, n // 2, n - n // 5, n - 3, n - 2, n - 1})
    return {
        "length": n,
        "fingerprint": f"{fingerprint(order):016x}",
        "spots": [[at, int(order[at])] for at in spots],
    }


def state(generator):
    """Words and next index, out of torch's saved form: seed, left, seeded, next, words."""
    raw = generator.get_state().numpy().tobytes()
    left, _seeded, following = struct.unpack_from("<iiQ", raw, 8)
    words = struct.unpack_from("<624Q", raw, 24)
    # A generator that was only seeded says left = 1, next = 0: no word is left.
    index = 624 if left == 1 else following
    return {"next": index, "fnv": f"{fnv(words):016x}"}


def generator(seed):
    g = torch.Generator()
    g.manual_seed(seed)
    return g


def randperm_cases():
    small = itertools.product([1, 2, 3, 4, 5, 10, 63, 623, 624, 625, 1000, 4099], SEEDS)
    middle = itertools.product([50_000, 1_281_167], [0, 42, -7, 2**32 + 5])
    rest = [(14_197_122, 42), (2**24 - 1, 3), (2**24 + 1, 3)]
    edge = (2**32 - 1) // 20
    large = [(edge - 1, 42), (edge, 42)]
    for n, seed in [*small, *middle, *rest, *large]:
        g = generator(seed)
        yield {"n": n, "seed": seed, **describe(torch.randperm(n, generator=g)), "state": state(g)}


def distributed_cases():
    small = itertools.product(
        [1, 2, 3, 7, 10, 64, 101],
        [1, 2, 3, 4, 16, 25],
        [0, 42, -1, 2**32 - 1],
        [0, 1, 5],
        [False, True],
    )
    large = itertools.product([1000, 50_001], [4, 7, 1024], [42, 2**40 + 3], [0, 89], [False, True])
    for samples, ranks, seed, epoch, drop_last in [*small, *large]:
        for rank in sorted({0, ranks // 2, ranks - 1}):
            sampler = DistributedSampler(
                range(samples), ranks, rank, seed=seed, drop_last=drop_last
            )
            sampler.set_epoch(epoch)
            yield {
                "samples": samples,
                "ranks": ranks,
                "rank": rank,
                "seed": seed,
                "epoch": epoch,
                "drop_last": drop_last,
                **describe(list(sampler)),
            }


class Indices(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index


def loader_cases():
    """DistributedSampler through DataLoader: every rank's batches of an epoch."""
    for samples, ranks, local, seed, epoch in itertools.product(
        [5, 24, 101], [1, 2, 3, 4], [1, 3, 8], [7, -2], [0, 3]
    ):
        for sampler_drop_last, drop_last in itertools.product([False, True], repeat=2):
            every = []
            for rank in range(ranks):
                sampler = DistributedSampler(
                    range(samples), ranks, rank, seed=seed, drop_last=sampler_drop_last
                )
                sampler.set_epoch(epoch)
                loader = DataLoader(
                    Indices(samples), batch_size=local, sampler=sampler, drop_last=drop_last
                )
                every.append([batch.tolist() for batch in loader])
            yield {
                "samples": samples,
                "ranks": ranks,
                "local_batch": local,
                "seed": seed,
                "epoch": epoch,
                "sampler_drop_last": sampler_drop_last,
                "drop_last": drop_last,
                "batches": every,
            }


def flat(batches):
    return [
        index
        for batch in batches
        for index in (batch.tolist() if torch.is_tensor(batch) else batch)
    ]


def alone(samples, seed, batch, drop_last, early):
    g = generator(seed)
    batches = BatchSampler(RandomSampler(range(samples), generator=g), batch, drop_last)
    for epoch in range(4):
        # An epoch left early: all its batches are taken, its end is never asked for.
        taken = list(itertools.islice(batches, len(batches))) if epoch in early else list(batches)
        yield {**describe(flat(taken)), "state": state(g)}


def through_loader(samples, seed, batch, drop_last, early, **workers):
    g = generator(seed)
    loader = DataLoader(
        Indices(samples),
        batch_size=batch,
        shuffle=True,
        drop_last=drop_last,
        generator=g,
        **workers,
    )
    for epoch in range(4):
        taken = list(itertools.islice(loader, len(loader))) if epoch in early else list(loader)
        yield {**describe(flat(taken)), "state": state(g)}


def random_cases():
    plain = itertools.product(
        [1, 2, 10, 64, 1000], [0, 42, -1, 2**32 + 9], [1, 4, 7], [False, True]
    )
    for samples, seed, batch, drop_last in plain:
        if drop_last and samples < batch:
            continue
        for draws, run in [("sampler-alone", alone), ("through-loader", through_loader)]:
            for early in [[], [1]]:
                yield {
                    "draws": draws,
                    "samples": samples,
                    "seed": seed,
                    "batch": batch,
                    "drop_last": drop_last,
                    "left_early": early,
                    "epochs": list(run(samples, seed, batch, drop_last, early)),
                }
    for samples, seed in [(50_000, 42), (1_281_167, 42)]:
        yield {
            "draws": "sampler-alone",
            "samples": samples,
            "seed": seed,
            "batch": 256,
            "drop_last": False,
            "left_early": [],
            "epochs": list(alone(samples, seed, 256, False, [])),
        }
    # With workers: those that are started for each epoch, and those that live on.
    for draws, workers in [
        ("through-loader", {"num_workers": 2}),
        ("through-persistent-loader", {"num_workers": 2, "persistent_workers": True}),
    ]:
        for samples, drop_last in [(10, False), (64, True), (1000, False)]:
            yield {
                "draws": draws,
                "samples": samples,
                "seed": 42,
                "batch": 4,
                "drop_last": drop_last,
                "left_early": [],
                "epochs": list(through_loader(samples, 42, 4, drop_last, [], **workers)),
            }


def state_cases():
    """What `get_state()` gives, whole, and what a DataLoader then reads in two epochs."""
    for seed, drawn in [(3, 0), (-5, 624), (42, 1000)]:
        g = generator(seed)
        # A normal deviate leaves its twin behind, which is no word of the twister.
        if drawn == 1000:
            torch.randn(1, generator=g)
        torch.empty(drawn, dtype=torch.int32).random_(generator=g)
        saved = g.get_state().numpy().tobytes()
        loader = DataLoader(Indices(20), batch_size=6, shuffle=True, drop_last=True, generator=g)
        epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
        after = g.get_state().numpy().tobytes()
        yield {"saved": saved.hex(), "epochs": epochs, "after": after.hex()}


FILES = {
    "randperm": randperm_cases,
    "distributed": distributed_cases,
    "distributed_loader": loader_cases,
    "random_sampler": random_cases,
    "generator_state": state_cases,
}


def render(cases):
    # One case a line: a change shows as the lines that changed.
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    version = torch.__version__.split("+")[0]
    return f'{{"torch":"{version}","cases":[\n{lines}\n]}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--only", choices=FILES, action="append", help="only this file")
    options = parser.parse_args()
    changed = []
    for name in options.only or FILES:
        path = GOLDEN / f"{name}.json"
        text = render(FILES[name]())
        if options.check:
            if not path.exists() or path.read_text() != text:
                changed.append(path.name)
        else:
            GOLDEN.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"{path.name}: {len(text):,} bytes", file=sys.stderr)
    if changed:
        sys.exit(f"torch {torch.__version__} gives other orders: {', '.join(changed)}")


if __name__ == "__main__":
    main()
