"""Does slowfs follow its table, and how fast is it without one?

Readers in a closed loop (each opens, reads and closes a file, then the next one) are γ reads in
flight; what they get together is put beside t(γ). A file is one request of the kernel. The
ceiling is measured with a table that never binds.
"""

import statistics

from .context import SAMPLE
from .mount import Mount
from .slow import CURVE
from .table import Section, percent, rate, seconds, signed_percent, size, spread, verdict, whole

# In MB/s: more than any memory gives.
UNBOUND = {1: 1_000_000}
# Samples and their bytes.
FILES = ((1_500, SAMPLE), (200, 1_000_000))


def slowfs(context):
    section = Section(["file", "latency", "readers", "table", "measured", "off"])
    deviations = [
        *(follow(context, section, files, 0.0, (1, 2, 3, 4, 8, 16)) for files in FILES),
        # With latency, reads are not in service all the time: only one reader has a rate
        # that follows from the table without a model.
        follow(context, section, FILES[0], 0.001, (1,)),
    ]
    worst = max(deviations)
    section.note(
        f"Largest deviation of a median: {percent(worst)}, {verdict(worst <= 0.02, '2 %')}."
    )
    section.note("Without a table that binds:")
    section.note(ceiling(context).markdown())
    return section


def dataset(context, files):
    samples, bytes_each = files
    return context.dataset(
        f"flat-{samples}x{bytes_each}", "--samples", samples, "--mean", f"{bytes_each}B"
    )


def follow(context, section, files, latency, counts):
    """Rows for the numbers of readers; the largest deviation among them."""
    worst, bytes_each = 0.0, files[1]
    source = dataset(context, files)
    options = ("--latency", f"{latency * 1e3:g}ms") if latency else ()
    with Mount(context.commands, context.binary("slowfs"), source, CURVE, *options) as at:
        context.baseline("pread-pool", at.path, "--threads", 4)
        for readers in counts:
            in_service = 1e6 * CURVE[min(readers, max(CURVE))]
            expected = bytes_each / (latency + bytes_each / in_service) if latency else in_service
            runs = [
                context.baseline("pread-pool", at.path, "--threads", readers).json
                for _ in range(context.runs)
            ]
            measured = [run["bytes"] / run["seconds"] for run in runs]
            off = statistics.median(measured) / expected - 1
            worst = max(worst, abs(off))
            section.row(
                size(bytes_each),
                seconds(latency) if latency else "none",
                readers,
                rate(expected),
                spread(measured, rate),
                signed_percent(off),
            )
    return worst


def ceiling(context):
    section = Section(["file", "readers", "rate", "reads/s"])
    for files in FILES:
        with Mount(
            context.commands, context.binary("slowfs"), dataset(context, files), UNBOUND
        ) as at:
            context.baseline("pread-pool", at.path, "--threads", 4)
            for readers in (1, 4, 16):
                runs = [
                    context.baseline("pread-pool", at.path, "--threads", readers).json
                    for _ in range(context.runs)
                ]
                section.row(
                    size(files[1]),
                    readers,
                    spread([run["bytes"] / run["seconds"] for run in runs], rate),
                    spread([run["samples"] / run["seconds"] for run in runs], whole),
                )
    return section
