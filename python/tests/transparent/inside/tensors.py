"""Tensors that were saved: torch and safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transparent.inside import files, program


@program("torch.load", "tensors", modules=["torch"])
def load(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from saved(data, mmap=False)


@program("torch.load(mmap=True)", "tensors", modules=["torch"])
def load_mapped(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from saved(data, mmap=True)


def saved(data: Path, *, mmap: bool) -> Iterator[bytes]:
    import torch

    for path in files(data):
        tensors = torch.load(path, mmap=mmap, weights_only=True)
        yield from (tensors[name].numpy().tobytes() for name in sorted(tensors))


@program("safetensors", "safetensors", modules=["safetensors", "torch"])
def safe(data: Path, scratch: Path) -> Iterator[bytes]:
    from safetensors import safe_open

    for path in files(data):
        with safe_open(path, framework="np") as file:
            yield from (file.get_tensor(name).tobytes() for name in sorted(file.keys()))
