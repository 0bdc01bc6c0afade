#!/usr/bin/env python3
"""What `Decode(dct_scaling=True)` saves, by the size of photographs; one thread, CPU time, best of three.

.venv/bin/python bench/scaled_decode.py
"""

from __future__ import annotations

import io
import json
import time

import numpy as np
from PIL import Image

from belady import _native, transforms as T

CHAINS = {
    "imagenet_train": [T.RandomResizedCrop(224), T.RandomHorizontalFlip()],
    "imagenet_eval": [T.Resize(256), T.CenterCrop(224)],
}


def main() -> None:
    for width, height, images in ((500, 375, 300), (2000, 1500, 40), (4000, 3000, 12)):
        file = photograph(width, height)
        for name, rest in CHAINS.items():
            exact, scaled = (
                best(file, [T.Decode(dct_scaling=on), *rest], images) for on in (False, True)
            )
            print(f"{width}x{height}, {len(file) / 1e3:,.0f} KB, {name}: {exact * 1e3:.2f} ms, "
                  f"scaled {scaled * 1e3:.2f} ms, {exact / scaled:.2f} times less")  # fmt: skip


def photograph(width: int, height: int) -> bytes:
    y, x = np.mgrid[0:height, 0:width] / 80
    waves = np.stack([np.sin(x + y), np.cos(x - 2 * y), np.sin(3 * x) * np.cos(y)], axis=2)
    noise = np.random.default_rng(0).normal(0, 6, (height, width, 3))
    file = io.BytesIO()
    Image.fromarray(np.clip(waves * 60 + 128 + noise, 0, 255).astype(np.uint8)).save(
        file, "JPEG", quality=90
    )
    return file.getvalue()


def best(file: bytes, steps: list[T.Step], images: int) -> float:
    """Seconds an image."""
    chain = _native.Chain(json.dumps([step.as_json() for step in steps]))
    found = []
    for _ in range(3):
        began = time.process_time()
        for sample in range(images):
            chain.run(file, 0, 0, sample)
        found.append((time.process_time() - began) / images)
    return min(found)


if __name__ == "__main__":
    main()
