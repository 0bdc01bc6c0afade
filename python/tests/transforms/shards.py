"""WebDataset and TFRecord files, written by hand."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What a feature of an example holds.
Feature = bytes | Sequence[int] | Sequence[float]


def write_tar(path: Path, samples: Sequence[Mapping[str, bytes]]) -> None:
    """Samples whose members are named after what they are: `jpg`, `cls`."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, sample in enumerate(samples):
            for name, data in sample.items():
                info = tarfile.TarInfo(f"{number:05}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def write_tfrecord(path: Path, examples: Sequence[Mapping[str, Feature]]) -> None:
    with open(path, "wb") as file:
        for features in examples:
            record = example(features)
            length = struct.pack("<Q", len(record))
            file.write(length + _masked(length) + record + _masked(record))


def example(features: Mapping[str, Feature]) -> bytes:
    """A `tf.train.Example`."""
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(value)))
        for name, value in features.items()
    )
    return _field(1, entries)


def _feature(value: Feature) -> bytes:
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    if value and isinstance(value[0], float):
        return _field(2, _field(1, struct.pack(f"<{len(value)}f", *value)))
    return _field(3, _field(1, b"".join(_varint(int(number) % 2**64) for number in value)))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def _masked(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


#: CRC-32C, a byte at a time.
_TABLE = _table()
