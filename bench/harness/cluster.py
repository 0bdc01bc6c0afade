"""Four nodes, one slow source: `belady` and `nopfs` over TCP, `belady` over MPI, torch's DataLoader without
page cache and with one on each node.

All of a section is one run of the harness: the same dataset, the same `slowfs` table, the same
namespaces with the same links. Bytes of the source are slowfs's own counters. What a run should take is
what `belady simulate` says of a scenario that is written from the same numbers.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

from .cgroup import MemoryGroup, NoCgroup
from .context import SAMPLE
from .mount import HDMLP_4, Mount
from .netns import Network
from .process import ROOT, CommandFailed, run, say
from .slow import in_turns
from .table import Section, percent, rate, seconds, signed_percent, size, spread, times, verdict

NODES = 4
# In batches of this, an epoch is a whole number of steps, and no sample is read twice in one.
BATCH = 32
STEPS = 17
SAMPLES = NODES * BATCH * STEPS
EPOCHS = 5
# It keeps nothing, so its later epochs are all alike.
TORCH_EPOCHS = 3
STAGING = 16 << 20
THREADS = 8
# More than the dataset, over all nodes.
SPARE = 0.02
PORT = 7117
# Of a rank: with fewer, the source is not always asked for as much as it gives.
WORKERS = 4


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a node computes and its link carries, and what the source gives: bytes a second."""

    compute: float
    network: float
    curve: dict

    def cluster(self, cache):
        """As `belady read --system` and `belady simulate` know it."""
        points = ", ".join(
            f'[{readers}, "{value:g} MB/s"]' for readers, value in self.curve.items()
        )
        # Rates that no run comes near: what binds is the source, the links and the consumers.
        return f"""[cluster]
nodes = {NODES}
compute = "{self.compute / 1e6:g} MB/s"
preprocess = "100 GB/s"
network = "{self.network / 1e6:g} MB/s"

[cluster.source]
link = "100 GB/s"
sharing = "aggregate"
readers = "threads"
throughput = [{points}]

[[cluster.tier]]
name = "staging"
capacity = {STAGING}
threads = {THREADS}
read = [[1, "10 GB/s"]]

[[cluster.tier]]
name = "ram"
capacity = {cache}
threads = 2
read = [[1, "10 GB/s"]]
"""


# Two cores serve four nodes, the source and torch: 30 MB/s a node leave most of them idle. The source
# gives a sixth of what the nodes compute, as fast to one reader as to many.
SIXTH = Machine(compute=30e6, network=100e6, curve={1: 20})
# hdmlp-4's own rates, all divided by this.
DIVISOR = 4
HDMLP = Machine(
    compute=100e6 / DIVISOR,
    network=10_000e6 / DIVISOR,
    curve={readers: value / DIVISOR for readers, value in HDMLP_4.items()},
)


def sixth(context):
    section = measure(context, "cluster", SIXTH, factor=5.4)
    section.note(
        f"The source's t(4) is {rate(1e6 * max(SIXTH.curve.values()))}, a sixth of the {rate(NODES * SIXTH.compute)} "
        "that the nodes compute together."
    )
    return section


def hdmlp(context):
    section = measure(context, "cluster-hdmlp", HDMLP, factor=None)
    section.note(
        f"Rates of `scenarios/hdmlp-4.toml` divided by {DIVISOR}: compute, t(γ) and network. The dataset and the "
        "caches are those of the section above, all in RAM."
    )
    return section


class Bench:
    """What all runs of a section share."""

    def __init__(self, context, name, machine):
        self.context, self.machine = context, machine
        self.dataset = context.dataset(
            "flat-cluster", "--samples", SAMPLES, "--mean", f"{SAMPLE}B", "--stddev", "10KB"
        )
        self.total = sum(file.stat().st_size for file in self.dataset.iterdir())
        self.cache = -(-round((1 + SPARE) * self.total) // NODES)
        self.system = context.folder / f"{name}-system.toml"
        self.system.write_text(machine.cluster(self.cache))
        self.scenario = context.folder / f"{name}.toml"
        self.scenario.write_text(f"""name = "{name}"

[dataset]
path = {json.dumps(str(self.dataset))}

[training]
epochs = {EPOCHS}
batch = {NODES * BATCH}
order = "torch"
seed = 0

{machine.cluster(self.cache)}""")
        self.key = context.folder / "cluster.key"
        self.key.unlink(missing_ok=True)
        with os.fdopen(os.open(self.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as key:
            key.write(os.urandom(32).hex())
        # What torch's processes take on a node without pages of the dataset.
        self.used = 0

    def simulate(self, policy):
        return self.context.belady("simulate", self.scenario, "--policy", policy, "--json").json[0]

    def mounted(self, source=None, *options):
        slowfs = self.context.binary("slowfs")
        return Mount(
            self.context.commands, slowfs, source or self.dataset, self.machine.curve, *options
        )

    def read(self, at, policy, *options):
        return [
            self.context.binary("belady"),
            "read",
            at,
            "--format",
            "flat",
            "--batch",
            BATCH,
            "--seed",
            0,
            "--epochs",
            EPOCHS,
            "--staging",
            f"{STAGING}B",
            "--threads",
            THREADS,
            "--cache",
            f"ram:{self.cache}B",
            "--policy",
            policy,
            "--system",
            self.system,
            "--consume",
            f"{self.machine.compute / 1e6:g}MB/s",
            "--barrier",
            "--checksum",
            "--no-snapshot",
            "--json",
            *options,
        ]

    def tcp(self, network, policy):
        """All ranks over TCP, each in its namespace."""
        with self.mounted() as at:
            ranks = network.everywhere(
                self.context.commands,
                lambda node: self.read(
                    at.path,
                    policy,
                    "--rank",
                    node,
                    "--ranks",
                    NODES,
                    "--meet",
                    f"{network.address(0)}:{PORT}",
                    "--bind",
                    network.address(node),
                    "--key-file",
                    self.key,
                ),
            )
            return Run(ranks, at.stats())

    def torch(self, network, python):
        try:
            with self.mounted() as at, self.groups() as groups:
                found = self._torch(
                    network, python, at, lambda node: (groups[node].inside, at.path)
                )
        except NoCgroup:
            with self.mounted() as at:
                return self._torch(network, python, at, lambda node: ([], at.path))
        self.used = max(self.used, *(group.held.used for group in groups))
        return found

    def torch_with_pages(self, network, python):
        """The kernel of each node keeps pages for it, in as much memory as belady has there."""
        limit = self.used + self.cache + STAGING
        with self.mounted(self.copies(), "--page-cache") as at, self.groups(limit) as groups:
            found = self._torch(
                network, python, at, lambda node: (groups[node].inside, at.path / str(node))
            )
        found.limit, found.pages = limit, max(group.held.pages for group in groups)
        return found

    @contextlib.contextmanager
    def groups(self, limit=None):
        """A memory cgroup for each node."""
        with contextlib.ExitStack() as stack:
            commands = self.context.commands
            yield [
                stack.enter_context(MemoryGroup(commands, limit, f"-{node}"))
                for node in range(NODES)
            ]

    def copies(self):
        """The dataset in a folder for each node, as links: files of other names are other files to the kernel,
        which keeps pages of each by itself, as kernels of several machines do."""
        folder = self.context.folder / "cluster-copies"
        shutil.rmtree(folder, ignore_errors=True)
        for node in range(NODES):
            (folder / str(node)).mkdir(parents=True)
            for file in self.dataset.iterdir():
                os.link(file, folder / str(node) / file.name)
        return folder

    def _torch(self, network, python, at, place):
        """`place` says what goes before the command of a node, and where it finds the dataset."""
        script = ROOT / "bench" / "loaders" / "distributed.py"
        self.context.commands.name(python, "python")

        def command(node):
            inside, folder = place(node)
            return [
                *inside,
                python,
                script,
                folder,
                "--rank",
                node,
                "--ranks",
                NODES,
                "--meet",
                f"{network.address(0)}:{PORT}",
                "--epochs",
                TORCH_EPOCHS,
                "--batch",
                BATCH,
                "--workers",
                WORKERS,
                "--consume",
                self.machine.compute,
            ]

        ranks = network.everywhere(self.context.commands, command, {"GLOO_SOCKET_IFNAME": "eth0"})
        return Run(ranks, at.stats())

    def mpi(self, network):
        """As `tcp`, started by mpirun on the nodes, over their links."""
        with self.mounted() as at, tempfile.TemporaryDirectory() as folder:
            agent = rsh_agent(pathlib.Path(folder), network)
            self.context.commands.name(agent, "AGENT")
            self.context.commands.name(folder, "REPORTS")
            hosts = ",".join(f"{network.address(node)}:1" for node in range(NODES))
            command = [
                *network.on(0),
                "mpirun",
                "--allow-run-as-root",
                "--bind-to",
                "none",
                "-n",
                NODES,
                "-H",
                hosts,
                "--mca",
                "plm_rsh_agent",
                agent,
                "--mca",
                "btl",
                "tcp,self",
                "--mca",
                "btl_tcp_if_include",
                "eth0",
                "--mca",
                "oob_tcp_if_include",
                "eth0",
                "--output-filename",
                folder,
                *self.read(at.path, "belady", "--ranks", NODES, "--transport", "mpi"),
            ]
            run(self.context.commands, command)
            found = sorted(pathlib.Path(folder).glob("1/rank.*/stdout"))
            return Run([json.loads(file.read_text()) for file in found], at.stats())


@dataclasses.dataclass
class Run:
    """Reports of all ranks, and what the source counted."""

    ranks: list
    source: dict
    # With page cache: the limit of a node's memory, and the pages of files that a node held at most.
    limit: int = 0
    pages: int = 0

    def __post_init__(self):
        if len(self.ranks) != NODES:
            raise CommandFailed(f"{len(self.ranks)} of {NODES} ranks reported")
        if not all(rank.get("order_ok", True) for rank in self.ranks):
            raise CommandFailed("a rank got samples out of order")

    def epochs(self):
        """Seconds of each epoch, which all ranks end together."""
        by_rank = [[epoch["seconds"] for epoch in rank["epochs"]] for rank in self.ranks]
        return [max(times) for times in zip(*by_rank, strict=True)]

    def later(self):
        return statistics.mean(self.epochs()[1:])

    def source_later(self, total):
        """Bytes an epoch after the first, which has to read all."""
        return (self.source["bytes"] - total) / (len(self.epochs()) - 1)

    def share(self, key):
        """Of what was consumed after the first epoch."""
        later = [epoch for rank in self.ranks for epoch in rank["epochs"][1:]]
        return sum(epoch[key] for epoch in later) / sum(epoch["bytes"] for epoch in later)

    def stall(self):
        return statistics.mean(
            statistics.mean(epoch["stall_seconds"] for epoch in rank["epochs"][1:])
            for rank in self.ranks
        )

    def checksums(self):
        return [rank["checksum"] for rank in self.ranks]


def rsh_agent(folder, network):
    """What mpirun starts its daemons with instead of ssh: host, command."""
    agent = folder / "agent"
    cases = "\n".join(
        f"{network.address(node)}) space={network.space(node)} ;;" for node in range(network.nodes)
    )
    agent.write_text(
        f'#!/bin/sh\nhost=$1\nshift\ncase "$host" in\n{cases}\nesac\n'
        'exec nsenter --net=/run/netns/$space unshare --uts sh -c "hostname $space; $*"\n'
    )
    agent.chmod(0o700)
    return agent


def torch_python():
    """A Python that has torch: the one of the tests or of the benchmarks."""
    for options in ((), ("--bench",)):
        where = subprocess.check_output(
            ["python3", ROOT / "scripts" / "python_env.py", *options, "--where"], text=True
        ).strip()
        python = pathlib.Path(where) / "bin" / "python"
        has_torch = (
            subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
            if python.exists()
            else None
        )
        if has_torch is not None and has_torch.returncode == 0:
            return python
    return None


def mpi_missing(context):
    """Why nothing can be measured over MPI; none if it can."""
    if shutil.which("mpirun") is None:
        return "there is no mpirun; it is in the package openmpi-bin"
    answer = subprocess.run(
        [context.binary("belady"), "read", "/", "--transport", "mpi", "--ranks", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        "`belady` was built without MPI: `make bench-cluster` builds it with it"
        if "without MPI" in answer.stderr
        else None
    )


def measure(context, name, machine, factor):
    bench = Bench(context, name, machine)
    predicted = {policy: bench.simulate(policy) for policy in ("belady", "nopfs")}
    perfect = predicted["belady"]["perfect_seconds"] / EPOCHS
    python, no_mpi = torch_python(), mpi_missing(context)
    with Network(context.commands, NODES, machine.network) as network:
        measured = {
            policy: lambda policy=policy: bench.tcp(network, policy) for policy in predicted
        }
        if no_mpi is None:
            measured["mpi"] = lambda: bench.mpi(network)
        if python is not None:
            measured["torch"] = lambda: bench.torch(network, python)
            measured["torch-pages"] = lambda: bench.torch_with_pages(network, python)
        found = in_turns(measured, context.runs)
    runs = {name: given for name, given in found.items() if given is not None}
    section = Section(
        [
            "loader",
            "epoch 1",
            "later epochs",
            "belady is",
            "of no I/O",
            "of simulate: epoch 1, later",
            "stall",
            "source bytes, later",
            "peers, RAM, source: later",
            "",
        ]
    )
    for policy, title in (
        ("belady", "belady, TCP"),
        ("nopfs", "nopfs, TCP"),
        ("mpi", "belady, MPI"),
        ("torch", "torch DataLoader"),
        ("torch-pages", "torch DataLoader, page cache"),
    ):
        if policy in runs:
            gain = typical_epoch(runs[policy]) / typical_epoch(runs["belady"])
            row(
                section,
                bench,
                title,
                runs[policy],
                gain,
                perfect,
                predicted.get(policy.replace("mpi", "belady")),
                policy,
            )
    for policy, outcome in predicted.items():
        planned, bytes_read = outcome["epoch_seconds"], outcome["source_bytes_per_epoch"]
        section.row(
            f"`belady simulate`, {policy}",
            seconds(planned[0]),
            seconds(statistics.mean(planned[1:])),
            "",
            "",
            "",
            "",
            size(statistics.mean(bytes_read[1:])),
            "",
            "",
        )
    section.row("no I/O", "", seconds(perfect), "", "", "", "", "", "", "")
    conclude(section, bench, runs, factor, python, no_mpi)
    return section


def typical_epoch(runs):
    """Of those after the first."""
    return statistics.median(run.later() for run in runs)


def row(section, bench, title, found, gain, perfect, predicted, policy):
    first, later = [run.epochs()[0] for run in found], [run.later() for run in found]
    off = statistics.median(later) / perfect - 1
    judged, beside, shares = [], "", ""
    if predicted:
        planned = predicted["epoch_seconds"]
        offs = (
            statistics.median(first) / planned[0] - 1,
            statistics.median(later) / statistics.mean(planned[1:]) - 1,
        )
        beside = ", ".join(map(signed_percent, offs))
        shares = ", ".join(
            percent(statistics.mean(run.share(key) for run in found))
            for key in ("peer_bytes", "ram_bytes", "source_bytes")
        )
    source = [run.source_later(bench.total) for run in found]
    if policy in ("belady", "mpi"):
        judged = [
            verdict(max(source) == 0, "no source bytes after epoch 1"),
            verdict(off <= 0.1, "no I/O + 10 %"),
            verdict(max(map(abs, offs)) <= 0.1, "simulate ± 10 %"),
        ]
    section.row(
        title,
        spread(first, seconds),
        spread(later, seconds),
        "" if policy in ("belady", "mpi") else times(gain),
        signed_percent(off),
        beside,
        spread([run.stall() for run in found], seconds),
        spread(source, size),
        shares,
        ", ".join(judged),
    )


def conclude(section, bench, runs, factor, python, no_mpi):
    beside_torch(section, runs, factor, python)
    if "mpi" in runs:
        wanted = runs["belady"][0].checksums()
        alike = all(run.checksums() == wanted for run in runs["mpi"] + runs["belady"])
        section.note(
            f"Checksums of all bytes in their order, rank by rank, {verdict(alike, 'MPI and TCP alike')}."
        )
    else:
        section.note(f"MPI was not measured: {no_mpi}.")
        say(f"MPI: {no_mpi}")
    curve = ", ".join(f"{n}: {value:g} MB/s" for n, value in bench.machine.curve.items())
    section.note(
        f"{NODES} network namespaces on one machine, links of {rate(bench.machine.network)} each way (`tc tbf`). Source: one "
        f"slowfs for all, t(γ) {curve}. Dataset: {SAMPLES:,} files, {size(bench.total)}; caches in RAM, {size(bench.cache)} "
        f"a node, together {percent(SPARE)} more than the dataset. Consumers: {rate(bench.machine.compute)} a node, batch "
        f"{BATCH} a rank, all end a step together; staging {STAGING >> 20} MiB, {THREADS} threads a node, {EPOCHS} epochs "
        f"(torch: {TORCH_EPOCHS}, {WORKERS} workers a rank). A later epoch is the mean of "
        "all after the first. Source bytes, later: slowfs's counter over the whole run less one reading of the "
        "dataset, an epoch. No I/O: the sum over steps of the slowest rank's computing. torch reads "
        "the same order with a DistributedSampler."
    )


def beside_torch(section, runs, factor, python):
    if python is None:
        section.note("torch's DataLoader was not measured: no Python with torch was found.")
        return
    gains = {
        name: typical_epoch(runs[name]) / typical_epoch(runs["belady"])
        for name in ("torch", "torch-pages")
        if name in runs
    }
    judged = f", {verdict(gains['torch'] >= factor, f'at least {factor} times')}" if factor else ""
    section.note(
        f"After the first epoch belady over TCP is {times(gains['torch'])} as fast as torch's DataLoader without page "
        f"cache{judged}."
    )
    if "torch-pages" not in gains:
        section.note(
            "torch's DataLoader with page cache was not measured: there is no memory cgroup."
        )
        return
    pages = runs["torch-pages"]
    section.note(
        f"It is {times(gains['torch-pages'])} as fast as torch's DataLoader with page cache. Each node's processes and "
        f"pages are then in a memory cgroup of {spread([run.limit for run in pages], size)}, which is what they held without page "
        f"cache, and belady's RAM and staging. Pages that a node held at most: {spread([run.pages for run in pages], size)}."
    )
