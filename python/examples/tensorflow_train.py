"""TensorFlow: the loader as a `tf.data.Dataset`, whose maps decode."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import shapes
import tensorflow as tf

import belady
import belady.tensorflow


def decode(samples: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    images = tf.io.decode_raw(samples, tf.uint8)
    return tf.cast(images, tf.float32) / 255 - 0.5, tf.cast(labels, tf.float32)


def main() -> None:
    data = belady.open(shapes.make())
    loader = belady.DataLoader(
        data, batch_size=32, shuffle=True, seed=0, collate_fn=belady.tensorflow.strings,
        cache="ram:1MiB",
    )  # fmt: skip
    batches = belady.tensorflow.dataset(loader).map(decode).prefetch(2)
    weights = tf.Variable(tf.zeros([shapes.SIDE * shapes.SIDE, 1]))
    for epoch in range(3):
        for images, labels in batches:
            with tf.GradientTape() as tape:
                scores = tf.squeeze(images @ weights, 1)
                loss = tf.reduce_mean(
                    tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=scores)
                )
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
        print(f"epoch {epoch}: loss {float(loss):.4f}")
    assert float(loss) < 0.5
    loader.close()


if __name__ == "__main__":
    main()
