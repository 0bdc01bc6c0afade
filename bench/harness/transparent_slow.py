"""An unmodified program on a slow source, with `belady run` and without.

The program is `baselines pread-pool`: threads that open, read and close shuffled files, epoch after epoch.
slowfs is told to let the kernel keep neither names nor attributes, so that each stat of a program reaches
it and is counted. Its counters are read by the program itself, when an epoch begins and when it ends.
They lie outside of the dataset, which is a folder of the mount.

Operations are counted twice: in later epochs alone, and from the mount to the end of the last epoch, with the
first epoch, in which copies are made. The second is how MONARCH's paper counts, over three epochs as well.
"""

import statistics

from .context import SAMPLE
from .mount import Mount
from .process import run
from .slow import CURVE
from .table import Section, percent, seconds, spread, verdict, whole
from .transparent import Gate, copies_in, from_disk

# What a metadata server takes at least, and the threads that slowfs needs to have so many under way.
LATENCY, SERVERS = "0.3ms", 32
# As in MONARCH's runs.
EPOCHS = 3
THREADS = 8
QUOTA = 0.56
HEAD = [
    "dataset",
    "read",
    "epoch 1",
    "of no belady",
    "epoch 2",
    "later epochs",
    "epoch 2 of direct",
    "later of direct",
    "copying after epoch 1",
    "at the source a later epoch: stats",
    "opens",
    "reads",
    "operations of no belady: a later epoch",
    "all epochs, the first too",
    "",
]
OPERATIONS = ("lookup", "getattr", "open", "read", "opendir", "readdir")


def slow(context):
    section = Section(HEAD)
    # All of one size, so that 56 % of the bytes are 56 % of the files.
    files = context.dataset(
        "transparent-files/data",
        "--samples",
        10_000,
        "--mean",
        f"{SAMPLE}B",
        "--layout",
        "folder:100",
    )
    records = context.dataset(
        "transparent-records/data",
        "--samples",
        10_000,
        "--mean",
        f"{SAMPLE}B",
        "--layout",
        "records:25",
    )
    for name, data, options in (
        ("10,000 files of 110 KB", files, ()),
        ("25 files of 44 MB, in pieces of 256 KiB", records, ("--piece", "256KiB")),
    ):
        program = pool(context, options)
        add_rows(section, name, measure(context, data, program))
    section.note(notes(context))
    return section


def notes(context):
    return (
        f"t(γ) of `scenarios/hdmlp-4.toml` times 2: {', '.join(f'{n}: {r} MB/s' for n, r in CURVE.items())}; each "
        f"lookup, getattr and open takes {LATENCY}, and the kernel keeps no names and attributes. {EPOCHS} epochs, "
        "kinds in turns; later epochs are those after epoch 2 (after epoch 1 of `directly`). "
        "`directly`: the same program, without us, on the folder of copies that the run before it has left. After "
        "epoch 1 the program waits until no more copies are made, which takes what stands there, and until they are on "
        "the disk; then the page cache is emptied, as it is before `directly`, so that both read copies from the disk "
        "first: epoch 2 is compared with that one's epoch 1, later ones come from the page cache. In the rows "
        "without a pause the program does not wait. `page cache`: the kernel keeps what was read from the source, as NFS and Lustre "
        "let it; then bytes that are read and copied at the same time come from there once. Names do not: a small file "
        "is looked up and opened twice in the first epoch, by the program and by the thread that copies it. Counters are slowfs's, means of epochs 2 to the last, the worst run; stats are "
        "lookups and getattrs. Operations have listings too; `all epochs` are from the mount to the end of the last one, "
        "as MONARCH's 56 % are counted."
    )


def pool(context, options=()):
    """`baselines pread-pool` as it is typed, for a folder."""

    def command(folder, *more):
        return [
            context.binary("baselines"),
            "pread-pool",
            folder,
            "--threads",
            THREADS,
            "--epochs",
            EPOCHS,
            *options,
            *more,
        ]

    return command


def measure(context, data, program):
    """Runs of each kind, by name; each is the program's report and how long copying went on."""
    total = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
    kinds = (
        "no belady",
        "belady, all fits",
        "directly",
        "belady, all fits, no pause",
        "belady, 56 %",
        "no belady, page cache",
        "belady, page cache",
    )
    found = {name: [] for name in kinds}
    for _ in range(context.runs):
        found["no belady"].append(alone(context, data, program))
        ours, direct = fitting(context, data, program, total)
        found["belady, all fits"].append(ours)
        found["directly"].append(direct)
        found["belady, all fits, no pause"].append(
            under(context, data, program, total, pause=False)[0]
        )
        found["belady, 56 %"].append(under(context, data, program, round(QUOTA * total))[0])
        found["no belady, page cache"].append(alone(context, data, program, "--page-cache"))
        found["belady, page cache"].append(
            under(context, data, program, round(1.05 * total), True, None, "--page-cache")[0]
        )
    return found


def mounted(context, data, *options):
    return Mount(
        context.commands,
        context.binary("slowfs"),
        data.parent,
        CURVE,
        "--metadata-latency",
        LATENCY,
        "--metadata-cache",
        "0s",
        "--threads",
        SERVERS,
        *options,
    )


def alone(context, data, program, *options):
    with mounted(context, data, *options) as at:
        command = program(at.path / data.name, "--counter", at.path / ".slowfs-stats")
        return run(context.commands, command).json | {"lag": None}


def under(context, data, program, quota, pause=True, then=None, *options):
    """With `belady run`, and what `then` makes of the level."""
    with context.level() as level, mounted(context, data, *options) as at:
        gate = Gate(context.folder / "transparent-gate", level)
        waits = ("--gate", gate.path) if pause else ()
        command = program(at.path / data.name, "--counter", at.path / ".slowfs-stats", *waits)
        with gate:
            report = context.transparent(at.path / data.name, level, quota, command).json
        return report | {"lag": gate.lag if pause else None}, then(level) if then else None


def fitting(context, data, program, total):
    """All copies fit; then the same from the copies themselves."""
    # A little more than all, since a level has files of its own.
    quota = round(1.05 * total)
    return under(
        context,
        data,
        program,
        quota,
        then=lambda level: directly(context, program, level),
    )


def directly(context, program, level):
    from_disk()
    return run(context.commands, program(copies_in(level))).json | {"lag": None}


def add_rows(section, dataset, found):
    plain = [
        statistics.mean(count(run) for run in found["no belady"])
        for count in (operations, all_operations)
    ]
    direct = [epochs(run) for run in found["directly"]]
    # The first from the copies, as our second is.
    first = statistics.median(values[0] for values in direct)
    later = statistics.median(value for values in direct for value in values[1:])
    alone_first = statistics.median(epochs(run)[0] for run in found["no belady"])
    for name, runs in found.items():
        times = [epochs(run) for run in runs]
        # The one that reads copies for the first time, and those after it.
        from_copies = 0 if name == "directly" else 1
        settled = [value for values in times for value in values[from_copies + 1 :]]
        of_second = statistics.median(values[from_copies] for values in times) / first
        of_later = statistics.median(settled) / later
        worst = max(runs, key=all_operations) if name != "directly" else None
        section.row(
            dataset,
            name,
            spread([values[0] for values in times], seconds),
            percent(statistics.median(values[0] for values in times) / alone_first)
            if "belady" in name
            else "",
            spread([values[1] for values in times], seconds),
            spread(settled, seconds),
            percent(of_second),
            percent(of_later),
            lag(runs),
            *counts(worst, plain),
            judged(name, of_second, worst, plain),
        )


def epochs(run):
    return [epoch["seconds"] for epoch in run["epochs"]]


def per_epoch(run, names):
    """What the source was asked for in a later epoch, on average."""
    differences = (
        sum(epoch["counters"][1][name] - epoch["counters"][0][name] for name in names)
        for epoch in run["epochs"][1:]
    )
    return statistics.mean(differences)


def operations(run):
    return per_epoch(run, OPERATIONS)


def all_operations(run):
    """From the mount to the end of the last epoch: copies that were made after an epoch count too."""
    last = run["epochs"][-1]["counters"][1]
    return sum(last[name] for name in OPERATIONS)


def lag(runs):
    lags = [run["lag"] for run in runs if run["lag"] is not None]
    return spread(lags, seconds) if lags else ""


def counts(worst, plain):
    if worst is None:
        return ("",) * 5
    shown = (per_epoch(worst, names) for names in (("lookup", "getattr"), ("open",), ("read",)))
    return (
        *map(whole, shown),
        percent(operations(worst) / plain[0]),
        percent(all_operations(worst) / plain[1]),
    )


def judged(name, of_second, worst, plain):
    if name == "belady, all fits":
        asked = per_epoch(worst, ("lookup", "getattr", "open", "read"))
        return ", ".join(
            (
                verdict(of_second <= 1.05, "epoch 2 within 5 % of direct"),
                verdict(asked == 0, "nothing at the source"),
            )
        )
    if name == "belady, 56 %":
        # To a tenth of a per cent, as it is shown: files of different sizes do not come out even.
        later, everything = (
            round(1 - count(worst) / without, 3) >= QUOTA
            for count, without in zip((operations, all_operations), plain, strict=True)
        )
        return ", ".join(
            (
                verdict(later, "a later epoch: operations down by at least 56 %"),
                verdict(everything, "all epochs: operations down by at least 56 %"),
            )
        )
    return ""
