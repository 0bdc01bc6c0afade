"""Records in large files: TensorFlow and DALI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transparent.inside import files, program


@program("TensorFlow TFRecordDataset", "records", modules=["tensorflow"])
def tf_records(data: Path, scratch: Path) -> Iterator[bytes]:
    import tensorflow as tf

    names = [str(path) for path in sorted(data.glob("*.tfrecord"))]
    dataset = tf.data.TFRecordDataset(names, num_parallel_reads=2)
    yield from (record.numpy() for record in dataset.prefetch(2))


@program("tf.data over files (read_file)", "photos", modules=["tensorflow"])
def tf_files(data: Path, scratch: Path) -> Iterator[bytes]:
    import tensorflow as tf

    names = tf.data.Dataset.list_files(f"{data}/*/*.jpg", shuffle=False)
    dataset = names.map(tf.io.read_file, num_parallel_calls=2)
    yield from (encoded.numpy() for encoded in dataset)


@program("tf.io.gfile", "photos", modules=["tensorflow"])
def tf_gfile(data: Path, scratch: Path) -> Iterator[bytes]:
    import tensorflow as tf

    for path in files(data):
        yield repr(tf.io.gfile.stat(str(path)).length).encode()
        with tf.io.gfile.GFile(str(path), "rb") as file:
            yield file.read()


@program("DALI TFRecord reader (mmap)", "records", modules=["nvidia.dali"])
def dali_records(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from dali(data, dont_use_mmap=False)


@program("DALI TFRecord reader (no mmap)", "records", modules=["nvidia.dali"])
def dali_records_read(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from dali(data, dont_use_mmap=True)


def dali(data: Path, *, dont_use_mmap: bool) -> Iterator[bytes]:
    import nvidia.dali.tfrecord as tfrec
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=1, num_threads=2, device_id=None, prefetch_queue_depth=1)
    def pipeline():  # type: ignore[no-untyped-def]
        features = fn.readers.tfrecord(
            path=[str(path) for path in sorted(data.glob("*.tfrecord"))],
            index_path=[str(path) for path in sorted(data.glob("*.index"))],
            features={"image": tfrec.FixedLenFeature((), tfrec.string, "")},
            dont_use_mmap=dont_use_mmap,
            name="records",
        )
        return features["image"]

    made = pipeline()
    made.build()
    for _ in range(made.epoch_size("records")):
        yield made.run()[0].at(0).tobytes()
