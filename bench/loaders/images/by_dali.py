"""DALI's CPU pipeline: with the crop drawn before decoding, which then stops early, or after it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from task import BATCH, MEAN, RATIO, SCALE, SEED, SIZE, STD, Loader


class Dali(Loader):
    def __init__(self, args: argparse.Namespace) -> None:
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def(batch_size=BATCH, num_threads=args.threads, device_id=None, seed=SEED)
        def pipeline() -> Any:
            jpegs, _ = fn.readers.file(file_root=str(args.data), random_shuffle=True, name="reader")
            if args.loader == "dali-fused":
                cropped = fn.decoders.image_random_crop(
                    jpegs, random_area=list(SCALE), random_aspect_ratio=list(RATIO)
                )
                resized = fn.resize(cropped, resize_x=SIZE, resize_y=SIZE)
            else:
                whole = fn.decoders.image(jpegs)
                resized = fn.random_resized_crop(
                    whole, size=SIZE, random_area=list(SCALE), random_aspect_ratio=list(RATIO)
                )
            return fn.crop_mirror_normalize(
                resized, mirror=fn.random.coin_flip(probability=0.5), dtype=types.FLOAT,
                output_layout="CHW", mean=[255 * one for one in MEAN], std=[255 * one for one in STD],
            )  # fmt: skip

        self.pipeline = pipeline()
        self.pipeline.build()
        # It goes round and round, in full batches.
        self.batches = -(-self.pipeline.epoch_size("reader") // BATCH)

    def epoch(self) -> Iterator[Any]:
        for _ in range(self.batches):
            (images,) = self.pipeline.run()
            # A view: it is good until the next run.
            yield images.as_array()
