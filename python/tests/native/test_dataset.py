"""Datasets: listed, joined and read."""

import array
from pathlib import Path

import pytest

from belady import _native

from .helpers import CLASSES, SAMPLES, contents, write_dataset


def test_the_format_follows_from_the_files_of_a_folder(
    dataset: _native.Dataset, tmp_path: Path
) -> None:
    assert len(dataset) == SAMPLES
    assert dataset.classes == list(CLASSES)
    assert dataset.format == "folder"
    assert dataset.path == str(tmp_path / "data")
    assert dataset.total_bytes == sum(len(contents(sample)) for sample in range(SAMPLES))
    assert dataset.size(3) == len(contents(3))
    assert dataset.label(0) == 0 and dataset.label(SAMPLES - 1) == 2
    assert array.array("q", dataset.labels()).tolist() == [0] * 20 + [1] * 20 + [2] * 20
    assert dataset.sample_path(0) == str(tmp_path / "data" / "cat" / "00000.bin")
    assert dataset.read([5, 0, 5]) == [contents(5), contents(0), contents(5)]


def test_records_say_where_in_a_file_they_lie(tmp_path: Path) -> None:
    (tmp_path / "all.bin").write_bytes(contents(0, 100) + contents(1, 100))
    dataset = _native.Dataset.open(str(tmp_path / "all.bin"), format="records:100")
    assert dataset.read([1]) == [contents(1, 100)]
    assert dataset.label(0) is None and array.array("q", dataset.labels()).tolist() == [-1, -1]
    assert dataset.sample_path(1) == f"{tmp_path / 'all.bin'} (bytes 100 to 200)"


def test_listing_reports_its_progress(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data")
    reported: list[tuple[str, int, int | None]] = []
    _native.Dataset.open(
        str(tmp_path / "data"), snapshots=False, progress=lambda *now: reported.append(now)
    )
    assert all(what in ("listing", "indexing") and done >= 0 for what, done, _ in reported)


def test_an_exception_of_a_progress_function_ends_the_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "data", samples=3000)

    def progress(what: str, done: int, total: int | None) -> None:
        raise RuntimeError("enough")

    try:
        _native.Dataset.open(str(tmp_path / "data"), snapshots=False, progress=progress)
    except RuntimeError as error:
        assert str(error) == "enough"
    # On a fast machine the listing ends before progress is reported.


def test_snapshots_are_written_to_the_given_directory(tmp_path: Path) -> None:
    data = str(write_dataset(tmp_path / "data"))
    # A directory that was just written to is not trusted to stay as it is.
    fingerprint = _native.Dataset.open(data, snapshots=str(tmp_path / "here")).fingerprint
    assert _native.Dataset.open(data, snapshots=False).fingerprint == fingerprint


def test_mistakes_are_errors_of_one_sentence(tmp_path: Path, dataset: _native.Dataset) -> None:
    with pytest.raises(FileNotFoundError, match="there is no dataset at .*nowhere"):
        _native.Dataset.open(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="`zip` is not a format"):
        _native.Dataset.open(str(tmp_path), format="zip")
    with pytest.raises(ValueError, match="throttle"):
        _native.Dataset.open(dataset.path, throttle="fast")
    for wrong in (-1, SAMPLES):
        with pytest.raises(IndexError, match=f"no sample {wrong}; the dataset has {SAMPLES}"):
            dataset.size(wrong)
        with pytest.raises(IndexError):
            dataset.read([0, wrong])


def test_an_error_names_a_deleted_sample(dataset: _native.Dataset) -> None:
    path = Path(dataset.sample_path(7))
    path.unlink()
    with pytest.raises(_native.SampleError, match=path.name) as caught:
        dataset.read([7])
    assert caught.value.sample == 7
    assert caught.value.path == str(path)
    assert isinstance(caught.value, _native.BeladyError)


def test_joined_datasets_lie_end_to_end(dataset: _native.Dataset, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name, value in (("ant", b"an ant"), ("dog", b"a dog")):
        (other / name).mkdir(parents=True)
        (other / name / "one.bin").write_bytes(value)
    second = _native.Dataset.open(str(other))
    joined = _native.Dataset.join([dataset, second])
    assert len(joined) == SAMPLES + 2
    assert joined.read([3, SAMPLES, SAMPLES + 1]) == [contents(3), b"an ant", b"a dog"]
    assert joined.classes == [*CLASSES, "ant"]
    assert joined.label(SAMPLES) == 3 and joined.label(SAMPLES + 1) == 1
    assert joined.sample_path(SAMPLES) == str(other / "ant" / "one.bin")
    assert joined.fingerprint not in (dataset.fingerprint, second.fingerprint)
    again = _native.Dataset.join([dataset, second])
    turned = _native.Dataset.join([second, dataset])
    assert joined.fingerprint == again.fingerprint != turned.fingerprint
    with pytest.raises(ValueError, match="nothing to join"):
        _native.Dataset.join([])


def test_an_error_names_a_missing_sample_by_its_joined_id(
    dataset: _native.Dataset,
) -> None:
    joined = _native.Dataset.join([dataset, dataset])
    Path(dataset.sample_path(4)).unlink()
    with pytest.raises(_native.SampleError) as caught:
        joined.read([SAMPLES + 4])
    assert caught.value.sample == SAMPLES + 4
