"""JAX: records become arrays without a copy on the way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import shapes

import belady
import belady.jax


def loss(weights: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    scores = (images.astype(jnp.float32) / 255 - 0.5) @ weights
    return jnp.mean(jnp.logaddexp(0, -scores * (2 * labels - 1)))


def main() -> None:
    data = belady.open(shapes.make())
    loader = belady.DataLoader(
        data, batch_size=32, shuffle=True, seed=0, collate_fn=belady.jax.stack, cache="ram:1MiB"
    )
    weights = jnp.zeros(shapes.SIDE * shapes.SIDE)
    step = jax.jit(jax.value_and_grad(loss))
    for epoch in range(3):
        for images, labels in loader:
            value, gradient = step(weights, images, labels)
            weights -= 0.1 * gradient
        print(f"epoch {epoch}: loss {float(value):.4f}")
    assert float(value) < 0.5
    loader.close()


if __name__ == "__main__":
    main()
