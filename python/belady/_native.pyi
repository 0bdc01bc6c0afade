"""The native module: the engine as Python sees it. Private; use the package's own names."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from .peers.meeting import Meeting

__all__ = [
    "Array",
    "Batch",
    "BeladyError",
    "Chain",
    "Cluster",
    "Dataset",
    "Engine",
    "Loader",
    "Made",
    "Orders",
    "Sample",
    "Share",
    "SampleError",
    "Stacked",
    "StalledError",
    "Transformer",
    "View",
    "Windows",
    "__version__",
    "clear_caches",
    "finish_log",
    "meeting_place",
    "part",
    "run_command",
]

__version__: str

class BeladyError(Exception):
    """Something failed that is no mistake in an argument."""

class SampleError(BeladyError):
    """A sample could not be read."""

    sample: int
    path: str

class StalledError(BeladyError):
    """The source does not answer, or all of the staging buffer is held by the caller."""

def part(
    data: Any,
    name: str,
    chain: Chain | None = None,
    seed: int = 0,
    epoch: int = 0,
    sample: int = 0,
) -> Array | bytes:
    """A part of a sample (see `Loader.transformed`), transformed by a chain if there is one."""

def finish_log() -> None:
    """Tells how many warnings were held back since there were too many of one kind."""

def run_command(arguments: Sequence[str]) -> int:
    """Runs the `belady` command line; its exit status."""

def clear_caches(directory: str) -> None:
    """Removes the caches in a directory, if none of them is in use."""

def meeting_place(key: str | None = None) -> str | None:
    """Where what started this process says that ranks can meet; None if it says nothing."""

@final
class Cluster:
    """The processes of a job, once they have met."""

    @staticmethod
    def join(
        meeting: Meeting,
        *,
        key: str | None = None,
        bind: str | None = None,
        tls: Sequence[str] | None = None,
        timeout: float = 300.0,
    ) -> Cluster:
        """Meets at a place that a library of Python's has, which is private to the job.

        `key` is text or the path of a file, `tls` the paths of certificate, key and authority.
        """
    @staticmethod
    def at(
        place: str | Sequence[str],
        rank: int,
        size: int,
        *,
        key: str | None = None,
        bind: str | None = None,
        tls: Sequence[str] | None = None,
        timeout: float = 300.0,
    ) -> Cluster:
        """Meets at "HOST:PORT", by hosts, in a directory, or with "mpi" by MPI."""
    @staticmethod
    def found(
        *,
        key: str | None = None,
        bind: str | None = None,
        tls: Sequence[str] | None = None,
        timeout: float = 300.0,
    ) -> Cluster:
        """Meets where the environment says (`meeting_place`)."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def near(self) -> list[int]:
        """Ranks that run on this machine, this one included."""
    def exchange(self, name: str, mine: bytes) -> list[bytes]:
        """What all ranks gave, by rank."""
    def agree(self, what: str, facts: Sequence[tuple[str, str]]) -> None:
        """Raises if a rank has other facts."""
    def close(self) -> None:
        """Leaves the others: nothing is served any more."""

@final
class Dataset:
    """A dataset that was listed: what is in it, and how to read it."""

    @staticmethod
    def open(
        path: str,
        *,
        format: str | None = None,
        extensions: Sequence[str] | None = None,
        allow_empty: bool = False,
        files: tuple[list[str], list[int | None], list[str]] | None = None,
        snapshots: str | bool = True,
        progress: Callable[[str, int, int | None], None] | None = None,
        throttle: str | None = None,
        freshness: str = "start",
    ) -> Dataset:
        """Lists a dataset, or takes the listing from its snapshot.

        `format` as on the command line ("folder", "records:114688", ...; None guesses).
        `extensions`: None is as usual, none in it all files. `files` are the samples instead of what
        is found: paths, their labels (as many, or none), and the names of labels.
        `snapshots` is a directory, True for the usual one, False for none. `progress` is
        called now and then with what is being done, how far it is and how far it goes.
        `freshness` is when copies in caches are compared with files: "start", "epoch", "never".
        """
    def hand_out(
        self,
        cluster: Cluster,
        format: str | None = None,
        extensions: Sequence[str] | None = None,
    ) -> None:
        """Rank 0 hands the list of this dataset out, as `received` takes it. All ranks call one
        of the two; `format` and `extensions` are what was asked for."""
    @staticmethod
    def received(
        cluster: Cluster,
        path: str,
        *,
        format: str | None = None,
        extensions: Sequence[str] | None = None,
        snapshots: str | bool = True,
        throttle: str | None = None,
        freshness: str = "start",
    ) -> Dataset:
        """The dataset that rank 0 has listed. This rank asks nothing of its storage."""
    @staticmethod
    def join(datasets: Sequence[Dataset]) -> Dataset:
        """Several datasets laid end to end: ids of the second follow those of the first."""
    def chosen(self, samples: Sequence[int]) -> Dataset:
        """Some samples of this dataset, in this order, as one of their own."""
    def __len__(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    def staging_needed(self, batch: int) -> int:
        """The smallest staging buffer for batches of so many samples."""
    @property
    def total_bytes(self) -> int: ...
    @property
    def classes(self) -> list[str]: ...
    def label(self, sample: int) -> int | None: ...
    def labels(self) -> bytes:
        """Labels of all samples as native int64; -1 where there is none."""
    def size(self, sample: int) -> int: ...
    def sample_path(self, sample: int) -> str:
        """Where a sample lies, for people: a file, or a file and the place in it."""
    def read(self, samples: Sequence[int]) -> list[bytes]:
        """Reads straight from the source, past every cache."""

@final
class Orders:
    """Which samples come in which batch of which epoch, for one rank."""

    @staticmethod
    def distributed(
        *,
        samples: int,
        batch: int,
        order: str = "torch",
        scheme: str = "uniform",
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        drop_last: bool = False,
        sampler_drop_last: bool = False,
    ) -> Orders:
        """As `DistributedSampler(seed=seed)` deals them out, or the order "sequential" or
        "permutation". `batch` is the rank's own."""
    @staticmethod
    def loader(
        *,
        samples: int,
        batch: int,
        seed: int | None = None,
        state: bytes | None = None,
        first_epoch: int = 0,
        draws: str = "loader",
        drop_last: bool = False,
    ) -> Orders:
        """As `DataLoader(shuffle=True, generator=g)` draws them. `state` is g's state
        (`torch.Generator.get_state()`) at the beginning of epoch `first_epoch`; without it g
        was seeded with `seed`. `draws` is "loader", "persistent-loader" or "sampler"."""
    @staticmethod
    def weighted(
        weights: Sequence[float],
        *,
        batch: int,
        num_samples: int,
        replacement: bool = True,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        drop_last: bool = False,
    ) -> Orders: ...
    @staticmethod
    def mixture(
        lengths: Sequence[int],
        weights: Sequence[float],
        *,
        batch: int,
        num_samples: int,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        drop_last: bool = False,
    ) -> Orders:
        """Each position comes from a dataset drawn by weight; each dataset is gone through
        in shuffled order, again and again."""
    @staticmethod
    def python(
        epoch: Callable[[int], tuple[Any, Any] | None],
        *,
        samples: int,
        batch: int | None = None,
        drop_last: bool = False,
        largest_batch: int | None = None,
    ) -> Orders:
        """A callback gives epoch after epoch: (ids, None), or (ids, ends of batches), both
        anything iterable or a buffer of int64; None when there are no more. It is called on
        a thread of its own, once for each epoch, while the epoch before is being read.
        What it raises is raised by `Loader.next`."""
    def first_batches(self, cut: int) -> Orders:
        """Of every epoch the first so many batches, where any epoch can be computed."""
    def place(self) -> tuple[int, int] | None:
        """Rank and ranks, where it is known what the others read."""
    def start_at(self, epoch: int, batch: int) -> Orders:
        """The same from there on: epoch 0 of the result is `epoch` without its first
        `batch` batches."""
    def ids(self, epoch: int) -> bytes:
        """Samples of an epoch, as an array of numbers of 32 bits; nothing after the last epoch."""
    def epoch(self, epoch: int) -> tuple[list[int], list[int]] | None:
        """Samples and ends of batches of an epoch."""
    def batches(self, epoch: int) -> int | None:
        """How many batches an epoch has, if that is known without running anything."""
    def state(self, epoch: int) -> bytes | None:
        """The generator's state at an epoch's beginning, where there is one generator."""

@final
class Engine:
    """Threads and cache tiers that jobs share."""

    def __new__(
        cls,
        *,
        tiers: Sequence[tuple[str | None, int]] = (),
        threads: int | None = None,
        system: str | None = None,
        attempts: int = 6,
        backoff: float = 0.05,
        timeout: float = 30.0,
        peers: Cluster | None = None,
    ) -> Engine:
        """`tiers`: directory (None for RAM) and quota in bytes, fastest first."""
    def start(
        self,
        dataset: Dataset,
        orders: Orders,
        *,
        epochs: int | None = None,
        staging: int = 512 << 20,
        staging_grows: bool = False,
        next_epoch: int | None = None,
        policy: str = "belady",
        bad_samples: str = "raise",
        writable: bool = True,
        shared: bool = False,
        cache_share: float = 1.0,
        trace: str | None = None,
        peers: bool = True,
    ) -> Loader:
        """`peers`: whether the engine's peers take part, if the orders know what they read."""
    def view(self, dataset: Dataset) -> View: ...
    def let_go(self) -> None:
        """Gives back the memory that is kept for the next loader of a dataset."""
    def stats(self) -> dict[str, Any]: ...
    def metrics_text(self) -> str: ...
    def serve_metrics(self, address: str) -> str:
        """Serves Prometheus text there; the address it listens on."""
    @property
    def threads(self) -> int: ...

@final
class View:
    """Random access to a dataset through the engine's caches."""

    def read(self, samples: Sequence[int]) -> list[Sample]: ...

@final
class Loader:
    """Gives out batches in order."""

    def next(self, timeout: float | None = None) -> Batch | None:
        """The next batch; None after the last one. Lets other threads run, and Ctrl-C.
        Raises TimeoutError when `timeout` seconds pass."""
    def begin_epoch(self, epoch: int) -> None:
        """Says that the consumer begins an epoch, so that all of it may be staged."""
    def rest(self) -> None:
        """Says that the consumer is done with its epoch, so that memory goes back to the system."""
    def waiting_for(self) -> str:
        """What the loader waits for, in words."""
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def shared_memory(self) -> tuple[int, int] | None:
        """Descriptor and length of the ring's memory, if it is shared."""
    def transformed(
        self,
        fields: Sequence[tuple[str | None, Chain | None]],
        seed: int = 0,
        threads: int = 1,
        depth: int = 2,
        on_error: str = "raise",
        on_block: Callable[[int, int, bool], object] | None = None,
        first: tuple[int, int] = (0, 0),
        repeats: bool = False,
    ) -> Transformer:
        """Its batches with every sample transformed, by threads of their own.

        This loader is closed by that: its batches come from the answer. A field is the part of a
        sample (a member of a WebDataset sample, a feature of a tf.train.Example; "jpg;png" takes
        the first that is there; None the whole sample) and what is done to it (None: nothing).
        `depth` is how many batches are worked on ahead. What is drawn at random depends on
        `seed`, on the epoch counted from `first` on, and on the sample; with `repeats` also on its
        place in the epoch.

        `on_block(address, length, True)` is called before a piece of memory is used for the first
        time, on the thread that calls `next`, and with False before it goes, on any thread.
        """

@final
class Batch:
    """A batch, lent: its memory goes back when the last reference is dropped."""

    @property
    def epoch(self) -> int: ...
    @property
    def iteration(self) -> int: ...
    @property
    def ids(self) -> list[int]:
        """Ids of the samples that are there: without skipped ones, with substitutes."""
    @property
    def labels(self) -> list[int]: ...
    def labels_bytes(self) -> bytes:
        """The labels as native int64."""
    def paths(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...
    def samples(self) -> list[Sample]: ...
    def place(self, index: int) -> tuple[int, int] | None:
        """Offset and length in the shared memory, if the sample lies there."""
    def stacked(self) -> Stacked | None:
        """All samples as one array, if they are equally long and lie evenly in memory."""

@final
class Sample:
    """The bytes of a sample: a buffer (read-only unless the loader is writable), and DLPack."""

    @property
    def id(self) -> int: ...
    @property
    def label(self) -> int | None: ...
    @property
    def path(self) -> str: ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Stacked:
    """A batch of equally long samples: a buffer of two dimensions, and DLPack."""

    @property
    def shape(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Chain:
    """A list of steps that fit together."""

    def __new__(cls, steps: str, *, before: int | None = None) -> Chain:
        """From JSON: `[{"op": "Resize", "size": [256], ...}, ...]`. ValueError names the step.

        With `before` it goes on from an array, behind so many steps of a longer chain.
        """
    @property
    def output(self) -> tuple[str | None, tuple[int, ...] | None]:
        """Dtype and shape of what comes out; None if that depends on the sample."""
    def run(self, data: Any, seed: int, epoch: int, sample: int) -> Array:
        """Transforms a sample: the bytes of anything with a buffer. Lets other threads run."""
    def run_array(
        self,
        data: Any,
        dtype: str,
        shape: Sequence[int],
        seed: int,
        epoch: int,
        sample: int,
    ) -> Array:
        """The same on an array that a function gave; for chains that go on from one."""
    def drawn(self, seed: int, epoch: int, sample: int, width: int, height: int) -> str:
        """What random steps draw for an image of this size, as JSON."""
    def check_window(self) -> None:
        """ValueError unless all that is done to an image is one window, as a kernel makes it."""
@final
class Share:
    """What a processor does for a GPU that decodes: a part of each batch."""

    def __new__(cls, chain: Chain, threads: int) -> Share: ...
    def windows(
        self, batch: Batch, seed: int, epoch: int, iteration: int | None = None
    ) -> Windows:
        """What is to be taken of each image of a batch. `iteration` is its number where places take
        part in draws."""
    @staticmethod
    def bytes(batch: Batch, positions: Sequence[int]) -> int:
        """How many bytes some samples of a batch have together."""
    @staticmethod
    def gather(batch: Batch, positions: Sequence[int], into: Any) -> list[int]:
        """Copies some samples of a batch one after the other into `into`, which is as long as all
        of them, for a decoder that fetches them from pinned memory. The answer is where each ends."""
    def run(
        self,
        batch: Batch,
        positions: Sequence[int],
        seed: int,
        epoch: int,
        into: Any,
        iteration: int | None = None,
    ) -> list[tuple[int, str]]:
        """Transforms some samples of a batch in threads, one after the other into `into`, which is
        as long as all of them. The answer is where that failed, and why."""

@final
class Windows:
    """What is to be taken of each image of a batch."""

    def __len__(self) -> int: ...
    def suited(self) -> tuple[list[int], list[int]]:
        """Positions of images that decoders of GPUs take, and of the others."""
    def table(
        self,
        positions: Sequence[int],
        decoded: dict[int, int],
        finished: dict[int, int],
        height: int,
        width: int,
    ) -> bytes:
        """The windows of these positions as the kernel reads them. `decoded` has the addresses of
        images in planes by their positions, `finished` of images that only have to be normalised."""

@final
class Array:
    """Numbers in memory: a writable buffer, and DLPack. bfloat16 shows as "H" in buffers."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int:
        """Of the first byte, to be compared with what `on_block` was told."""
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Array:
        """One of the first axis, on the same memory."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Transformer:
    """Gives out transformed batches in order."""

    def next(self, timeout: float | None = None) -> Made | None:
        """As `Loader.next`. With on_error="raise" a sample that cannot be transformed is a
        `belady.errors.DecodeError`; the next call goes on with the batch after it."""
    def waiting_for(self) -> str:
        """What it waits for, in words."""
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...

@final
class Made:
    """A transformed batch. Its memory is used again when the last reference is dropped.

    Ids, labels, paths and failures are by position in the batch as it was read, failed samples
    included; `kept` says which of them make up the fields.
    """

    @property
    def epoch(self) -> int:
        """As the loader counts: `first` is not added."""
    @property
    def iteration(self) -> int: ...
    @property
    def ids(self) -> list[int]: ...
    @property
    def labels(self) -> list[int]: ...
    def labels_bytes(self) -> bytes:
        """The labels as native int64."""
    def paths(self) -> list[str]: ...
    @property
    def kept(self) -> list[int] | None:
        """Positions of the samples in the fields; None for all, in order."""
    @property
    def failures(self) -> list[tuple[int, str]]:
        """Position and reason of the samples that could not be transformed."""
    def __len__(self) -> int:
        """Samples that were read, failed ones included."""
    @property
    def fields(self) -> int: ...
    def field(self, index: int) -> Array | list[Array] | list[bytes]:
        """One array where the chain's shape is fixed, else one a sample; without a chain the
        bytes (numbers of a tf.train.Example are arrays)."""
    @property
    def bytes(self) -> int:
        """Memory that it holds."""
