"""The native module: the Python interface of the engine. Private; use the package's own names."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from ._cluster.rendezvous import Rendezvous

__all__ = [
    "POLICIES",
    "SCHEMES",
    "Array",
    "Batch",
    "BeladyError",
    "Chain",
    "Cluster",
    "Dataset",
    "DecodeSplit",
    "DecodeWindows",
    "Engine",
    "GeneratorState",
    "Loader",
    "LogLimiter",
    "NodeConnection",
    "NodeEngine",
    "NodeLostError",
    "Orders",
    "OutputBatch",
    "Sample",
    "SampleError",
    "Stacked",
    "StalledError",
    "Transformer",
    "View",
    "__version__",
    "clear_caches",
    "finish_log",
    "format_size",
    "launcher",
    "parse_size",
    "policy",
    "randperm_words",
    "rendezvous_address",
    "sample_part",
    "serve_node",
    "shared_node",
    "start_node",
]

__version__: str

#: Policies that the engine runs.
POLICIES: list[str]
#: Schemes by which ranks share a batch.
SCHEMES: list[str]

class BeladyError(Exception):
    """An error that is not a wrong argument."""

class SampleError(BeladyError):
    """A sample could not be read."""

    sample: int
    path: str

class StalledError(BeladyError):
    """The source does not respond, or the caller holds all of the staging buffer."""

class NodeLostError(BeladyError):
    """The engine of this node's processes has ended; an engine of this process can go on."""

def sample_part(
    data: Any,
    name: str,
    chain: Chain | None = None,
    seed: int = 0,
    epoch: int = 0,
    sample: int = 0,
) -> Array | bytes:
    """Returns a part of a sample (see `Loader.transformed`), transformed by a chain if given."""

def finish_log() -> None:
    """Logs how many warnings of the engine the rate limit has suppressed."""

@final
class LogLimiter:
    """The rate limit of a logger's warnings."""

    def __new__(cls) -> LogLimiter: ...
    def admits(self, level: int, text: str, line: str) -> bool:
        """Returns whether a line is logged; one that is not is counted.

        `text` is the line before formatting: lines with the same text are of one kind."""
    def counts(self, *, all: bool = False) -> list[str]:
        """Returns lines about what was suppressed, for kinds whose interval has passed or all."""

def clear_caches(directory: str) -> None:
    """Removes the caches in a directory, if none of them is in use."""

def parse_size(text: str) -> int:
    """Returns the bytes of a size such as "40GiB" or "500 GB"."""

def policy(text: str) -> str:
    """Returns a policy such as "lobster,tau=5ms,eviction=true" as its name and the options that are
    not as by default: the same text for the same policy. A policy that the engine cannot run is a
    `ValueError`."""

def format_size(bytes: int) -> str:
    """Formats a number of bytes for messages, such as "42.95 GB"."""

def randperm_words(samples: int) -> int:
    """Returns the number of words that `torch.randperm(samples)` draws."""

def launcher(environment: dict[str, str] | None = None) -> tuple[int, int, int, int] | None:
    """Returns rank, number of ranks, and the same on this node, from the launcher of this process.

    None without a launcher. The default environment is that of this process."""

def rendezvous_address(key: str | None = None) -> str | None:
    """Returns the rendezvous address from the launcher of this process; None if it has none."""

@final
class Cluster:
    """The processes of a job, after their rendezvous."""

    @staticmethod
    def join(
        rendezvous: Rendezvous,
        *,
        key: str | None = None,
        bind: str | None = None,
        tls: Sequence[str] | None = None,
        timeout: float = 300.0,
    ) -> Cluster:
        """Joins by the rendezvous of a Python library, which is private to the job.

        `key` is text or the path of a file, `tls` the paths of certificate, key and authority.
        """
    @staticmethod
    def join_at(
        address: str | Sequence[str],
        rank: int,
        size: int,
        *,
        key: str | None = None,
        bind: str | None = None,
        tls: Sequence[str] | None = None,
        timeout: float = 300.0,
    ) -> Cluster:
        """Joins at "HOST:PORT", by a list of hosts, by a directory, or with "mpi" by MPI."""
    @staticmethod
    def join_from_environment(
        *,
        key: str | None = None,
        bind: str | None = None,
        tls: Sequence[str] | None = None,
        timeout: float = 300.0,
    ) -> Cluster:
        """Joins at the rendezvous address of the environment (`rendezvous_address`)."""
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def local_ranks(self) -> list[int]:
        """Returns the ranks on this machine, with this one."""
    @property
    def is_over_tcp(self) -> bool:
        """Whether samples travel over TCP, and not over MPI."""
    def exchange(self, name: str, mine: bytes) -> list[bytes]:
        """Exchanges bytes with all ranks, and returns theirs by rank."""
    def agree(self, what: str, facts: Sequence[tuple[str, str]]) -> None:
        """Raises if the facts of a rank differ."""
    def close(self) -> None:
        """Leaves the job: this process serves no more samples."""

@final
class Dataset:
    """A listed dataset."""

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
        """Lists a dataset, or reads the listing from its snapshot.

        `format` is as on the command line ("folder", "records:114688", ...; None guesses).
        `extensions` limits the files: None for the default, an empty sequence for all files.
        `files` replaces listing: paths, their labels (one for each, or none), and the names of
        labels. `snapshots` is a directory, True for the default one, False for none. `progress` is
        called with the phase, the number done and the total, if it is known. `freshness` is when
        cached samples are compared with files: "start", "epoch", "never"."""
    def share_listing(
        self,
        cluster: Cluster,
        format: str | None = None,
        extensions: Sequence[str] | None = None,
    ) -> None:
        """Sends the listing from rank 0 to all others, which call `receive_listing`.

        `format` and `extensions` are the options of `open`."""
    @staticmethod
    def receive_listing(
        cluster: Cluster,
        path: str,
        *,
        format: str | None = None,
        extensions: Sequence[str] | None = None,
        snapshots: str | bool = True,
        throttle: str | None = None,
        freshness: str = "start",
    ) -> Dataset:
        """Receives a dataset that rank 0 has listed. This rank does not list the storage."""
    @staticmethod
    def join(datasets: Sequence[Dataset]) -> Dataset:
        """Joins several datasets: ids of the second follow those of the first."""
    def subset(self, samples: Sequence[int]) -> Dataset:
        """Returns some samples of this dataset, in this order, as a dataset."""
    def __len__(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    def staging_needed(self, batch: int) -> int:
        """Returns the smallest staging buffer for batches of this many samples."""
    @property
    def total_bytes(self) -> int: ...
    @property
    def classes(self) -> list[str]: ...
    def label(self, sample: int) -> int | None: ...
    def labels(self) -> bytes:
        """Returns the labels of all samples as native int64; -1 where there is none."""
    def size(self, sample: int) -> int: ...
    def sample_path(self, sample: int) -> str:
        """Returns the path of a sample for messages: a file, or a file and the bytes in it."""
    def read(self, samples: Sequence[int]) -> list[bytes]:
        """Reads from the source, without any cache."""

@final
class Orders:
    """The samples of each batch of each epoch, for one rank."""

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
        """The order of `DistributedSampler(seed=seed)`, or the order "sequential" or
        "permutation". `batch` is the size of the rank's own batches."""
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
        """The order of `DataLoader(shuffle=True, generator=g)`. `state` is g's state
        (`torch.Generator.get_state()`) at the beginning of epoch `first_epoch`; without it, g
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
        """Each position takes the next sample of a dataset drawn by weight; each dataset is
        shuffled again after each pass."""
    @staticmethod
    def python(
        epoch: Callable[[int], tuple[Any, Any] | None],
        *,
        samples: int,
        batch: int | None = None,
        drop_last: bool = False,
        largest_batch: int | None = None,
    ) -> Orders:
        """The order that a callback returns for each epoch: (ids, None), or (ids, ends of
        batches), each an iterable or a buffer of int64; None after the last epoch. It is called
        on a separate thread, once for each epoch, while the epoch before is read. `Loader.next`
        raises its exceptions."""
    def first_batches(self, cut: int) -> Orders:
        """Returns the first `cut` batches of every epoch, for computed orders."""
    def rank_and_size(self) -> tuple[int, int] | None:
        """Returns the rank and the number of ranks, if the accesses of other ranks are known."""
    def start_at(self, epoch: int, batch: int) -> Orders:
        """Returns the rest of this order: epoch 0 of the result is `epoch` without its first
        `batch` batches."""
    def ids(self, epoch: int) -> bytes:
        """Returns the samples of an epoch as native uint32; empty after the last epoch."""
    def epoch(self, epoch: int) -> tuple[list[int], list[int]] | None:
        """Returns the samples and the ends of batches of an epoch."""
    def batches(self, epoch: int) -> int | None:
        """Returns the number of batches of an epoch; None if that is not known in advance."""
    def state(self, epoch: int) -> bytes | None:
        """Returns the generator's state at the beginning of an epoch; None without a generator."""

@final
class GeneratorState:
    """A state of torch's CPU generator: 624 words, and the number of used ones."""

    @staticmethod
    def from_torch(state: bytes) -> GeneratorState:
        """Makes a state from the bytes of `torch.Generator.get_state()`."""
    def to_torch(self, like: bytes | None = None) -> bytes:
        """Returns the bytes for `torch.Generator.set_state()`. Everything but the words, such as
        the seed, is copied from `like`."""
    @staticmethod
    def from_bytes(packed: bytes) -> GeneratorState:
        """Makes a state from the result of `to_bytes`."""
    def to_bytes(self) -> bytes:
        """Returns the words, four bytes each, then the number of used ones in two bytes."""
    def skip(self, words: int) -> GeneratorState:
        """Returns the state after drawing this many words."""
    def next_int64(self) -> int:
        """Returns the number that `torch.empty((), dtype=torch.int64).random_()` draws next."""
    def words_until(self, later: GeneratorState) -> int | None:
        """Returns the number of words drawn between this state and a later one; None above a
        limit."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

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
        on_demand: bool = False,
    ) -> Engine:
        """`tiers`: directory (None for RAM) and quota in bytes, fastest first. With `on_demand`,
        threads start with the first job."""
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
        node: NodeEngine | None = None,
        job: int = 0,
    ) -> Loader:
        """Starts a job. With `peers`, the engine's peers take part if the accesses of all ranks are
        known. With `node`, the engine of the node runs it for all ranks there, which give the job
        the same number."""
    def view(self, dataset: Dataset) -> View: ...
    def free_memory(self) -> None:
        """Frees the memory that is retained for the next loader of a dataset."""
    def stats(self) -> dict[str, Any]: ...
    def metrics_text(self) -> str: ...
    def serve_metrics(self, address: str, node: NodeEngine | None = None) -> str:
        """Serves metrics in Prometheus' format, of the node's engine if it is given, and returns
        the address it listens on."""
    @property
    def threads(self) -> int: ...

@final
class NodeConnection:
    """The connection of this process to the engine of its node."""

    def __new__(cls, socket: str) -> NodeConnection: ...
    @property
    def socket(self) -> str: ...
    def meet(
        self, cluster: Cluster, run: int, node: int, nodes: int, numbering: Sequence[int]
    ) -> str | None:
        """Tells the engine which node of the job it serves; the ranks are numbered node after node.

        Returns where the engine of node 0 listens for the others.
        """
    def join(self, meeting: str) -> None:
        """Waits until the engine has met those of the other nodes, where that of node 0 listens."""

@final
class NodeEngine:
    """One engine of the node's process, and this process's place among those that share it."""

    def __new__(
        cls,
        connection: NodeConnection,
        *,
        run: int,
        number: int,
        rank: int,
        ranks: int,
        tiers: Sequence[tuple[str | None, int]],
        threads: int | None = None,
        system: str | None = None,
        attempts: int = 6,
        timeout: float = 30.0,
        cluster: Cluster | None = None,
    ) -> NodeEngine:
        """`tiers` have the quotas of the whole node.

        With a cluster, the first rank of the node reports the engine to `belady top`.
        """
    def stats(self) -> dict[str, Any]: ...
    def metrics_text(self) -> str: ...

def shared_node() -> str | None:
    """The socket of the engine that outlives jobs, if one runs."""

def start_node(name: str, program: str, arguments: Sequence[str]) -> str:
    """Starts the process of a node engine; returns the path of its socket."""

def serve_node(socket: str) -> None:
    """Serves the ranks of this node at the socket that is the standard input."""

@final
class View:
    """Random access to a dataset through the engine's caches."""

    def read(self, samples: Sequence[int]) -> list[Sample]: ...

@final
class Loader:
    """Delivers batches in order."""

    def next(self, timeout: float | None = None) -> Batch | None:
        """Waits for the next batch; None after the last one. Releases the interpreter and checks
        for signals. Raises TimeoutError after `timeout` seconds."""
    def begin_epoch(self, epoch: int) -> None:
        """Notes that the consumer begins an epoch, so that all of it can be staged."""
    def end_epoch(self) -> None:
        """Notes that the consumer has ended its epoch, so that memory is returned to the system."""
    def waiting_for(self) -> str:
        """Returns what the loader waits for, as text."""
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def shared_memory(self) -> tuple[int, int] | None:
        """Returns descriptor and length of the ring's memory, if it is shared."""
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
        """Starts threads that transform every sample; the result takes over this loader.

        This closes the loader: the result delivers its batches. A field is a part of a sample (a
        member of a WebDataset sample, a feature of a tf.train.Example; "jpg;png" takes the first
        that exists; None the whole sample) and its chain (None: unchanged). `depth` is the number
        of batches that are transformed ahead. Random choices depend on `seed`, on the epoch
        counted from `first`, and on the sample; with `repeats` also on its position in the epoch.

        `on_block(address, length, True)` is called before memory is used for the first time, on the
        thread that calls `next`, and with False before it is freed, on any thread.
        """

@final
class Batch:
    """A lent batch. Its memory is released when the last reference is dropped."""

    @property
    def epoch(self) -> int: ...
    @property
    def iteration(self) -> int: ...
    @property
    def ids(self) -> list[int]:
        """Ids of the delivered samples: without skipped ones, with substitutes."""
    @property
    def labels(self) -> list[int]: ...
    def labels_bytes(self) -> bytes:
        """The labels as native int64."""
    def paths(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...
    def samples(self) -> list[Sample]: ...
    def shared_range(self, index: int) -> tuple[int, int] | None:
        """Returns offset and length of a sample in the shared memory; None if it is elsewhere."""
    def stacked(self) -> Stacked | None:
        """Returns all samples as one array, if they have equal lengths and distances in memory."""

@final
class Sample:
    """The bytes of a sample, with a buffer (read-only unless the loader is writable) and DLPack."""

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
    """A batch of equally long samples, with a buffer of two dimensions and DLPack."""

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
    """A validated list of transforms."""

    def __new__(cls, steps: str, *, before: int | None = None) -> Chain:
        """Parses JSON: `[{"op": "Resize", "size": [256], ...}, ...]`. ValueError names the step.

        With `before`, the chain begins with an array, after this many steps of a longer chain.
        """
    @property
    def output(self) -> tuple[str | None, tuple[int, ...] | None]:
        """Dtype and shape of the output; None if that depends on the sample."""
    def run(self, data: Any, seed: int, epoch: int, sample: int) -> Array:
        """Transforms a sample, any object with a buffer. Releases the interpreter."""
    def run_array(
        self,
        data: Any,
        dtype: str,
        shape: Sequence[int],
        seed: int,
        epoch: int,
        sample: int,
    ) -> Array:
        """Transforms an array from a function; for chains that begin with one."""
    def drawn(self, seed: int, epoch: int, sample: int, width: int, height: int) -> str:
        """Returns the random choices for an image of this size, as JSON."""
    def check_window(self) -> None:
        """Raises ValueError unless one kernel can compute the chain as a window of the image."""

@final
class DecodeSplit:
    """The CPU's share of decoding for a GPU."""

    def __new__(cls, chain: Chain, threads: int) -> DecodeSplit: ...
    def windows(
        self, batch: Batch, seed: int, epoch: int, iteration: int | None = None
    ) -> DecodeWindows:
        """Returns the window of each image of a batch. `iteration` is the batch's number, if
        positions take part in draws."""
    @staticmethod
    def bytes(batch: Batch, positions: Sequence[int]) -> int:
        """Returns the total bytes of some samples of a batch."""
    @staticmethod
    def gather(batch: Batch, positions: Sequence[int], into: Any) -> list[int]:
        """Copies some samples of a batch one after the other into `into`, which has exactly their
        length, for a decoder that reads pinned memory. Returns where each ends."""
    def run(
        self,
        batch: Batch,
        positions: Sequence[int],
        seed: int,
        epoch: int,
        into: Any,
        iteration: int | None = None,
    ) -> list[tuple[int, str]]:
        """Transforms some samples of a batch in threads, one after the other into `into`, which has
        exactly their length. Returns the positions of failures and their reasons."""

@final
class DecodeWindows:
    """The windows of the images of a batch."""

    def __len__(self) -> int: ...
    def split(self) -> tuple[list[int], list[int]]:
        """Returns the positions of images that a GPU can decode, and of the others."""
    def table(
        self,
        positions: Sequence[int],
        decoded: dict[int, int],
        finished: dict[int, int],
        height: int,
        width: int,
    ) -> bytes:
        """Returns the windows of these positions in the kernel's format. By position, `decoded` has
        the addresses of planar images, `finished` those of images that only need to be
        normalised."""

@final
class Array:
    """An array with a writable buffer and DLPack. In buffers, bfloat16 has the format "H"."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int:
        """Address of the first byte, as `on_block` gets it."""
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Array:
        """Returns a row of the first axis, on the same memory."""
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
    """Delivers transformed batches in order."""

    def next(self, timeout: float | None = None) -> OutputBatch | None:
        """As `Loader.next`. With on_error="raise", a sample that cannot be transformed raises
        `belady.errors.DecodeError`; the next call continues with the next batch."""
    def waiting_for(self) -> str:
        """Returns what it waits for, as text."""
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...

@final
class OutputBatch:
    """A transformed batch. Its memory is reused after the last reference is dropped.

    Ids, labels, paths and failures are by position in the batch as it was read, with failed
    samples; `kept` has the positions of the samples in the fields.
    """

    @property
    def epoch(self) -> int:
        """The loader's epoch, without the offset `first`."""
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
        """Returns the number of samples that were read, with failed ones."""
    @property
    def fields(self) -> int: ...
    def field(self, index: int) -> Array | list[Array] | list[bytes]:
        """Returns one array if the chain's shape is fixed, else one per sample; without a chain,
        the bytes (numbers of a tf.train.Example are arrays)."""
    @property
    def bytes(self) -> int:
        """Bytes of memory that it holds."""
