"""Images: Pillow, torchvision, DALI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transparent.inside import files, program


@program("PIL", "photos", modules=["PIL"])
def pillow(data: Path, scratch: Path) -> Iterator[bytes]:
    from PIL import Image

    for path in files(data):
        with Image.open(path) as image:
            yield image.convert("RGB").tobytes()


@program("torchvision decode_image", "photos", modules=["torchvision"])
def decode_image(data: Path, scratch: Path) -> Iterator[bytes]:
    from torchvision.io import decode_image

    yield from (decode_image(str(path)).numpy().tobytes() for path in files(data))


@program("torch DataLoader, ImageFolder, 2 workers (fork)", "photos", modules=["torchvision"])
def loader_fork(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from load(data, "fork")


@program("torch DataLoader, ImageFolder, 2 workers (spawn)", "photos", modules=["torchvision"])
def loader_spawn(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from load(data, "spawn")


@program("torch DataLoader, ImageFolder, 2 workers (forkserver)", "photos", modules=["torchvision"])
def loader_forkserver(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from load(data, "forkserver")


def load(data: Path, context: str) -> Iterator[bytes]:
    import torch
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = transforms.Compose([transforms.Resize((32, 32)), transforms.PILToTensor()])
    loader = torch.utils.data.DataLoader(
        ImageFolder(str(data), steps),
        batch_size=4,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
        num_workers=2,
        multiprocessing_context=context,
    )
    for pixels, labels in loader:
        yield pixels.numpy().tobytes()
        yield labels.numpy().tobytes()


@program("DALI file reader (mmap)", "photos", modules=["nvidia.dali"])
def dali_files(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from dali(data, dont_use_mmap=False)


@program("DALI file reader (no mmap)", "photos", modules=["nvidia.dali"])
def dali_files_read(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from dali(data, dont_use_mmap=True)


def dali(data: Path, *, dont_use_mmap: bool) -> Iterator[bytes]:
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=1, num_threads=2, device_id=None, prefetch_queue_depth=1)
    def pipeline():  # type: ignore[no-untyped-def]
        encoded, label = fn.readers.file(
            file_root=str(data), dont_use_mmap=dont_use_mmap, name="files"
        )
        return encoded, label

    made = pipeline()
    made.build()
    for _ in range(made.epoch_size("files")):
        encoded, label = made.run()
        yield encoded.at(0).tobytes()
        yield label.at(0).tobytes()
