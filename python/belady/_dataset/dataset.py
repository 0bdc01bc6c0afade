"""Datasets: what there is to read, listed once.

`belady.open` and the other functions here list a dataset, or read the listing from a snapshot, and
return a `Dataset`. It is also a map-style dataset for torch's own `DataLoader`: `data[i]` is
`(bytes, label)`, as torchvision's `ImageFolder` gives an image and its label.

A `Dataset` can be pickled and forked. The recipe by which it was opened travels; another process
opens it again when it first needs it, and compares the fingerprint.

In a job of several processes one of them lists. Rank 0 lists in `belady.open`; other ranks wait
until the dataset is needed. A `DataLoader` with peers gets the listing from rank 0, and asks
nothing of the storage. Anything else (`len(data)`, `data.targets`), which a rank may do by itself,
lists too. `belady.open(..., peers="auto")`, called on every rank, transfers the listing at once.

Reads of single samples go through the caches of the engine that serves the dataset (`Engine.view`,
or the last `DataLoader` made from it). Other processes share its caches on disk."""

from __future__ import annotations

import operator
import os
import random
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, cast, overload

from .. import _native
from .._cluster.world import find_world, in_worker
from .._configuration import arguments
from .._pipeline.fields import Transform
from ..errors import BeladyError
from . import manifest, progress as bars

if TYPE_CHECKING:
    from .._cluster.cluster import Cluster
    from .._engine.engine import Engine

#: How a dataset was opened: the arguments of `open`, the parts of a `join`, or a `subset`'s
#: dataset.
Recipe = dict[str, Any] | list["Recipe"]

FORMATS = ("folder", "flat", "records", "tfrecord", "webdataset")

#: When cached copies are compared with their files.
FRESHNESS = ("start", "epoch", "never")


def open(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,
    transform: Any = None,
    extensions: str | Iterable[str] | None = None,
    allow_empty: bool = False,
    labels: Sequence[Any] | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    snapshots: str | os.PathLike[str] | bool = True,
    progress: bool | None = None,
    throttle: str | None = None,
    peers: object = None,
    freshness: str = "start",
    **unknown: Any,
) -> Dataset:
    """Lists a dataset.

    - `path`: a directory, a file, a list of files, or a table ("train.csv", "train.tsv"). Samples
      of a directory are numbered by folder and name, those of a list or a table in its order.
    - `format`: "folder", "flat", "records:SIZE", "tfrecord" or "webdataset"; by default it follows
      from the files' names.
    - `extensions`: the ends of the files that count, such as "npy" or (".jpg", ".png"), in any
      case; () counts all. By default all files count; in class folders with images only images do,
      by torchvision's list, so that ids and labels are those of `ImageFolder`. A class folder
      without a file that counts is an error, as there, unless `allow_empty`.
    - `labels`: for a list of files, a number or text for each.
    - `path_column`, `label_column`: the columns of a table. Paths are relative to the table.
    - `transform`: as torchvision's datasets have it. Loaders use it (see `DataLoader`), and
      `data[i]` is a transformed sample.
    - `snapshots`: the directory that keeps the listing for the next start; True is the default one,
      False none.
    - `progress`: whether a long listing shows a bar; by default on a terminal.
    - `throttle`: slows the dataset down for trials ("1:66MB/s,4:146MB/s,latency:2ms").
    - `peers`: as for `belady.cluster`. Every rank of the job calls `open`: rank 0 lists, and the
      others get its listing.
    - `freshness`: when a file is compared with the listing before its copy is served from a cache:
      "start" (once for each loader), "epoch" (once an epoch) or "never" (for files that do not
      change). A changed file is a bad sample; old bytes are never delivered.

    >>> data = belady.open(photos)
    >>> len(data), data.classes
    (60, ['cat', 'dog', 'owl'])
    """
    arguments.no_unknown(unknown, "open", _OPTIONS)
    if throttle is not None and not isinstance(throttle, str):
        raise TypeError(
            f'throttle has to be text such as "1:66MB/s,latency:2ms", not {type(throttle).__name__}'
        )
    if freshness not in FRESHNESS:
        raise ValueError(f"freshness has to be one of {', '.join(FRESHNESS)}, not {freshness!r}")
    if progress is not None:
        arguments.flag(progress, "progress")
    place, files = _place(path, format, labels, path_column, label_column)
    if files is not None and not (format is extensions is None):
        raise ValueError(
            "format and extensions describe a directory, and path names files; leave them out"
        )
    recipe = {
        "path": place,
        "files": files,
        "format": _format(format),
        "extensions": _extensions(extensions),
        "allow_empty": arguments.flag(allow_empty, "allow_empty"),
        "snapshots": snapshots
        if isinstance(snapshots, bool)
        else arguments.path(snapshots, "snapshots"),
        "throttle": throttle,
        "freshness": freshness,
    }
    data = Dataset(None if _waits() else _build(recipe, progress), recipe)
    data.transform = transform
    if peers is not None:
        from .._cluster.cluster import cluster

        data.list_together(cluster(peers))
    return data


#: Arguments of `open`, to suggest one for a misspelled name.
_OPTIONS = (
    "format", "transform", "extensions", "allow_empty", "labels", "path_column", "label_column",
    "snapshots", "progress", "throttle", "peers", "freshness",
)  # fmt: skip


def _place(
    path: Any, format: object, labels: Any, path_column: object, label_column: object
) -> tuple[str, manifest.Named | manifest.Table | None]:
    """Returns the path of a dataset, and its files if the user names them."""
    columns = (path_column, label_column)
    if isinstance(path, Iterable) and not isinstance(path, str | bytes | os.PathLike):
        if columns != (None, None):
            raise ValueError(
                "path_column and label_column are for a table, and path is a list; leave them out"
            )
        return manifest.named(path, labels)
    place = os.path.abspath(arguments.path(path, "path"))
    if labels is not None:
        raise ValueError(
            "labels is for a list of files; give the labels of another dataset to its loader: "
            "DataLoader(data, labels=)"
        )
    if format is None and manifest.is_table(place):
        for name, column in zip(("path_column", "label_column"), columns, strict=True):
            if not isinstance(column, str | None):
                raise TypeError(f"{name} has to be the name of a column, not {column!r}")
        return place, manifest.Table(*cast("tuple[str | None, str | None]", columns))
    if columns != (None, None):
        raise ValueError(
            f"path_column and label_column are those of a .csv or .tsv file, not of {place}"
        )
    return place, None


def _extensions(given: object) -> list[str] | None:
    if given is None:
        return None
    ends = [given] if isinstance(given, str) else given
    if not isinstance(ends, Iterable):
        raise TypeError(f'extensions has to be text such as "jpg", or a list of it, not {given!r}')
    listed = list(ends)
    for end in listed:
        if not isinstance(end, str) or not end.strip("."):
            raise ValueError(
                f'extensions has to be made of text such as "jpg", and {end!r} is none'
            )
    return listed


def _waits() -> bool:
    """Whether this process waits for the listing of another one."""
    try:
        return find_world().rank > 0 and not in_worker()
    except ValueError:  # a loader reports contradictory variables
        return False


def folder(path: str | os.PathLike[str], transform: Any = None, **options: Any) -> Dataset:
    """Opens a folder for each class, numbered as torchvision does; files at any depth.

    >>> belady.folder(photos).class_to_idx
    {'cat': 0, 'dog': 1, 'owl': 2}
    """
    return open(path, format="folder", transform=transform, **options)


def flat(path: str | os.PathLike[str], **options: Any) -> Dataset:
    """Opens files at any depth, without labels.

    >>> sample, label = belady.flat(photos)[0]
    >>> label is None
    True
    """
    return open(path, format="flat", **options)


def records(path: str | os.PathLike[str], size: int | str, **options: Any) -> Dataset:
    """Opens large files that consist of records of one size.

    >>> len(belady.records(numbers, 64))
    100
    """
    length = arguments.size(size, "size")
    if length == 0:
        raise ValueError("size has to be at least 1 byte")
    return open(path, format=f"records:{length}", **options)


def tfrecord(path: str | os.PathLike[str], **options: Any) -> Dataset:
    """Opens TensorFlow's record files; checksums are verified when a record is read."""
    return open(path, format="tfrecord", **options)


def webdataset(path: str | os.PathLike[str], **options: Any) -> Dataset:
    """Opens tar files; a sample is the adjacent members of one key, labelled by its `cls`."""
    return open(path, format="webdataset", **options)


def join(*datasets: Dataset) -> Dataset:
    """Joins datasets end to end: the ids of the second follow those of the first.

    >>> data = belady.open(photos)
    >>> len(belady.join(data, data))
    120
    """
    parts: Sequence[Dataset] = datasets
    if len(datasets) == 1 and isinstance(datasets[0], list | tuple):
        parts = datasets[0]
    if not parts:
        raise ValueError("join needs at least one dataset")
    for position, part in enumerate(parts):
        if not isinstance(part, Dataset):
            raise TypeError(
                f"join takes datasets, but argument {position} is {type(part).__name__}; "
                "open it with belady.open"
            )
    if any(part.transform != parts[0].transform for part in parts):
        raise ValueError(
            "datasets with different transforms cannot be joined; open them without, and give one "
            "to the loader"
        )
    joined = Dataset(None, [part._recipe for part in parts], list(parts))
    joined.transform = parts[0].transform
    if all(part.is_listed for part in parts):
        joined.native  # noqa: B018  (raises if they cannot be joined)
    return joined


class Dataset(Sequence[tuple[bytes, int | None]]):
    """A listed dataset; see `belady.open`."""

    def __init__(
        self, native: _native.Dataset | None, recipe: Recipe, parts: Sequence[Dataset] = ()
    ) -> None:
        self._parts = parts
        self._opened = native
        self._pid = os.getpid()
        self._recipe = recipe
        self._fingerprint = native.fingerprint if native is not None else ""
        self._disk_tiers: list[arguments.Tier] = []
        self._engine: Callable[[], Engine | None] | None = None
        self._view: tuple[int, _native.View] | None = None
        self._classes: list[str] | None = None
        self._targets: list[int] | None = None
        #: The transform of samples, in loaders and in `data[i]`; None leaves them as they are.
        self.transform: Any = None
        self._checked_transform: tuple[Any, Transform] | None = None

    @property
    def native(self) -> _native.Dataset:
        """The native dataset; another process opens it again."""
        if self._opened is None or self._pid != os.getpid():
            if self._parts:
                opened = _derived(self._recipe, [part.native for part in self._parts])
            else:
                opened = _build(self._recipe, False)
            self._take(opened)
        assert self._opened is not None
        return self._opened

    def _take(self, opened: _native.Dataset) -> None:
        if self._fingerprint not in ("", opened.fingerprint):
            raise BeladyError(
                f"{opened.path} has changed since it was listed; open it again with belady.open"
            )
        self._opened, self._pid, self._fingerprint = opened, os.getpid(), opened.fingerprint

    @property
    def is_listed(self) -> bool:
        """Whether this process has the listing."""
        return self._opened is not None and self._pid == os.getpid()

    def list_together(self, cluster: Cluster | None) -> None:
        """Transfers rank 0's listing to ranks without one. Collective: all ranks call it."""
        if cluster is None:
            return
        for part in self._parts:
            part.list_together(cluster)
        if not self._parts:
            self._list_together(cluster)

    def _list_together(self, cluster: Cluster) -> None:
        failure: Exception | None = None
        if cluster.rank == 0:
            try:
                mine = self.native.fingerprint.encode()
            except Exception as error:  # the other ranks wait for it
                failure, mine = error, f"!{error}".encode()
        else:
            mine = self._fingerprint.encode() if self.is_listed else b""
        all_ = cluster.exchange("a dataset", mine)
        if failure is not None:
            raise failure
        if all_[0].startswith(b"!"):
            raise BeladyError(f"rank 0 could not list the dataset: {all_[0][1:].decode()}")
        if b"" not in all_:
            return
        assert isinstance(self._recipe, dict)
        recipe = self._recipe
        if cluster.rank == 0:
            self.native.share_listing(cluster.native, recipe["format"], recipe["extensions"])
        else:
            here = ("path", "format", "extensions", "snapshots", "throttle", "freshness")
            received = _native.Dataset.receive_listing(
                cluster.native, **{name: recipe[name] for name in here}
            )
            if not self.is_listed:
                self._take(received)

    def __len__(self) -> int:
        return len(self.native)

    def __bool__(self) -> bool:
        return len(self) > 0

    @property
    def path(self) -> str:
        """The path that was opened."""
        return self.native.path

    @property
    def format(self) -> str:
        """The format: "folder", "records:114688", ..."""
        return self.native.format

    @property
    def fingerprint(self) -> str:
        """A hash of the listing: paths, sizes and times of the files."""
        if not self._fingerprint:
            self.native  # noqa: B018  (which sets it)
        return self._fingerprint

    @property
    def total_bytes(self) -> int:
        """The bytes of all samples."""
        return self.native.total_bytes

    @property
    def classes(self) -> list[str]:
        """Names of the classes, sorted; empty if there are none."""
        if self._classes is None:
            self._classes = self.native.classes
        return self._classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Labels by class, as torchvision has them."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """Labels of all samples; -1 where there is none."""
        if self._targets is None:
            # One object for each distinct label, to save memory.
            labels = array("q", self.native.labels())
            one = {label: label for label in labels}
            self._targets = [one[label] for label in labels]
        return self._targets

    @property
    def paths(self) -> Paths:
        """The path of each sample, computed when it is read."""
        return Paths(self)

    def size(self, sample: int) -> int:
        """Returns the bytes of a sample."""
        return self.native.size(self._checked(sample))

    @overload
    def __getitem__(self, index: SupportsIndex) -> tuple[bytes, int | None]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[bytes, int | None]]: ...
    def __getitem__(
        self, index: SupportsIndex | slice
    ) -> tuple[bytes, int | None] | list[tuple[bytes, int | None]]:
        """Returns a sample and its label.

        >>> data = belady.open(photos)
        >>> sample, label = data[0]
        >>> len(sample) == data.size(0), label
        (True, 0)
        """
        if isinstance(index, slice):
            return self.__getitems__(list(range(*index.indices(len(self)))))
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[bytes, int | None]]:
        """Returns several samples; torch's DataLoader asks for a batch in this way."""
        samples = [self._checked(index) for index in indices]
        native = self.native
        read = [
            (data, native.label(sample))
            for sample, data in zip(samples, self._read(samples), strict=True)
        ]
        return read if self.transform is None else [self._transformed(*item) for item in read]

    def _transformed(self, data: bytes, label: int | None) -> Any:
        """Transforms a sample outside of loaders.

        Random steps draw from Python's generator, which torch seeds in its workers.
        """
        if self._checked_transform is None or self._checked_transform[0] is not self.transform:
            self._checked_transform = self.transform, Transform(self.transform)
        return self._checked_transform[1].sample(data, label, random.getrandbits(63), 0, 0)

    def __iter__(self) -> Iterator[tuple[bytes, int | None]]:
        for sample in range(len(self)):
            yield self[sample]

    def __contains__(self, value: object) -> bool:
        return any(value == item for item in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dataset) and self._recipe == other._recipe

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<belady.Dataset {self.path}: {len(self):,} samples, {self.format}>"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "recipe": self._recipe,
            "fingerprint": self._fingerprint,
            "disk_tiers": self._disk_tiers,
            "transform": self.transform,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        Dataset.__init__(self, None, state["recipe"], _parts_of(state["recipe"]))
        self._fingerprint = state["fingerprint"]
        self._disk_tiers = state["disk_tiers"]
        self.transform = state["transform"]

    def serve_from(self, engine: Engine, *, keep: bool = False) -> None:
        """Reads single samples through this engine's caches from now on.

        With `keep` the dataset keeps the engine alive; otherwise it ends with its loaders.
        """
        self._engine = (lambda: engine) if keep else weakref.ref(engine)
        self._disk_tiers = [tier for tier in engine.tiers if tier[0] is not None]
        self._view = None

    def _read(self, samples: list[int]) -> Sequence[Any]:
        view = self._current_view()
        if view is None:
            return self.native.read(samples)
        return [bytes(sample) for sample in view.read(samples)]

    def _current_view(self) -> _native.View | None:
        pid = os.getpid()
        if self._view is not None and self._view[0] == pid:
            return self._view[1]
        engine = self._engine() if self._engine is not None else None
        if engine is not None and engine.pid == pid:
            view = engine.native.view(self.native)
        elif self._disk_tiers:
            # In another process than the engine's: its caches on disk, with a thread here.
            view = _native.Engine(tiers=self._disk_tiers, threads=1).view(self.native)
        else:
            return None
        self._view = (pid, view)
        return view

    def _checked(self, index: SupportsIndex) -> int:
        sample, samples = operator.index(index), len(self)
        if not -samples <= sample < samples:
            raise IndexError(
                f"sample {sample} does not exist: {self.path} has {samples}, numbered from 0"
            )
        return sample + samples if sample < 0 else sample


class Paths(Sequence[str]):
    """The paths of a dataset's samples, computed when they are read."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @overload
    def __getitem__(self, index: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._dataset.native.sample_path(self._dataset._checked(index))


def _format(value: object) -> str | None:
    if value is None:
        return None
    name = value.partition(":")[0] if isinstance(value, str) else value
    arguments.choice(name, "format", FORMATS)
    if value == "records":
        raise ValueError('format "records" needs the size of a record, for example records:4096')
    return cast(str, value)


def _parts_of(recipe: Recipe) -> list[Dataset]:
    """Returns the datasets that a recipe is made of, for another process."""
    if isinstance(recipe, list):
        of = recipe
    else:
        of = [recipe["of"]] if "of" in recipe else []
    return [Dataset(None, part, _parts_of(part)) for part in of]


def _derived(recipe: Recipe, parts: list[_native.Dataset]) -> _native.Dataset:
    """Returns a join or a subset of native datasets."""
    if isinstance(recipe, list):
        return _native.Dataset.join(parts)
    return parts[0].subset(recipe["ids"].tolist())


def _build(recipe: Recipe, progress: bool | None) -> _native.Dataset:
    if isinstance(recipe, list):
        return _derived(recipe, [_build(part, progress) for part in recipe])
    if "of" in recipe:
        return _derived(recipe, [_build(recipe["of"], progress)])
    named = recipe["files"]
    files = None if named is None else named.files(recipe["path"])
    bar = bars.wanted(progress)
    try:
        return _native.Dataset.open(progress=bar, **(recipe | {"files": files}))
    finally:
        if bar is not None:
            bar.close()
