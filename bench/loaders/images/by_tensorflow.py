"""tf.data: the crop is drawn first and only that part decoded; the exact DCT, antialiased."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from task import BATCH, MEAN, RATIO, SCALE, SEED, SIZE, STD, Loader, files


class Tensorflow(Loader):
    def __init__(self, args: argparse.Namespace) -> None:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        whole = tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4])

        def transform(path: Any) -> Any:
            data = tf.io.read_file(path)
            begin, size, _ = tf.image.sample_distorted_bounding_box(
                tf.image.extract_jpeg_shape(data), whole, area_range=SCALE, aspect_ratio_range=RATIO,
                max_attempts=10, use_image_if_no_bounding_boxes=True,
            )  # fmt: skip
            window = tf.stack([begin[0], begin[1], size[0], size[1]])
            part = tf.image.decode_and_crop_jpeg(
                data, window, channels=3, dct_method="INTEGER_ACCURATE"
            )
            image = tf.image.resize(part, [SIZE, SIZE], antialias=True)
            image = tf.image.random_flip_left_right(image)
            image = (image / 255.0 - tf.constant(MEAN)) / tf.constant(STD)
            return tf.transpose(image, [2, 0, 1])

        paths = files(args.data)
        data = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=SEED)
        data = data.map(transform, num_parallel_calls=args.threads).batch(BATCH).prefetch(2)
        options = tf.data.Options()
        options.threading.private_threadpool_size = args.threads
        self.data = data.with_options(options)

    def epoch(self) -> Iterator[Any]:
        return self.data.as_numpy_iterator()
