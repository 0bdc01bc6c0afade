"""A loop without any framework: bytes and labels, epoch after epoch."""

from __future__ import annotations

import shapes

import belady


def main() -> None:
    data = belady.open(shapes.make())
    loader = belady.DataLoader(data, batch_size=32, shuffle=True, seed=0, cache="ram:1MiB")
    for epoch in range(3):
        brightness = dict.fromkeys(data.classes, 0)
        for samples, labels in loader:
            for sample, label in zip(samples, labels, strict=True):
                brightness[data.classes[label]] += sum(memoryview(sample)[:16])
        print(f"epoch {epoch}: brightness of the first rows: {brightness}")
    print(loader.stats().table())
    loader.close()


if __name__ == "__main__":
    main()
