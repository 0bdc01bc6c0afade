"""Several fields of WebDataset samples: an image, a number and a text, as a dict."""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from pathlib import Path

import pictures

import belady
from belady import transforms as T


def make() -> Path:
    """A shard of 40 samples, each of three files."""
    root, draw = Path(tempfile.mkdtemp(prefix="belady-shards-")), random.Random(0)
    with tarfile.open(root / "000.tar", "w") as tar:
        for number in range(40):
            kind = pictures.CLASSES[number % 2]
            members = {
                "png": pictures.png(kind, draw),
                "cls": str(number % 2).encode(),
                "txt": f"number {number} is {kind}".encode(),
            }
            for name, data in members.items():
                info = tarfile.TarInfo(f"{number:04}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return root


def main() -> None:
    fields = {
        "image": ("jpg;png", [T.Decode(), T.RandomCrop(32), T.ToTensor("uint8")]),
        "label": ("cls", T.Int()),
        "text": ("txt", T.Text()),
    }
    loader = belady.DataLoader(
        belady.webdataset(make()), batch_size=8, shuffle=True, cache="ram:8MiB", transform=fields
    )
    for batch in loader:
        assert batch["image"].shape == (8, 3, 32, 32)
        assert len(batch["text"]) == len(batch["label"]) == 8
    print(f'{len(loader)} batches; the last begins with "{batch["text"][0]}"')
    loader.close()


if __name__ == "__main__":
    main()
