"""ImageNet's transforms in native threads, without any framework."""

from __future__ import annotations

import pictures

import belady
from belady import transforms as T


def main() -> None:
    data = belady.open(pictures.make())
    loader = belady.DataLoader(
        data, batch_size=32, shuffle=True, seed=0, cache="ram:8MiB", transform=T.imagenet_train(32)
    )
    for epoch in range(2):
        for images, labels in loader:
            assert images.shape == (len(labels), 3, 32, 32)
        print(f"epoch {epoch}: the last batch is {images.dtype} {images.shape}")
    loader.close()

    print("evaluated with", T.imagenet_eval(24, resize=32))
    test = belady.DataLoader(data, batch_size=32, transform=T.imagenet_eval(24, resize=32))
    print(sum(len(labels) for _, labels in test), "images")
    test.close()


if __name__ == "__main__":
    main()
