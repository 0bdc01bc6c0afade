"""Time to the first batch, of a fresh run and of one that goes on in mid-epoch."""

import statistics

from .context import MANY
from .process import CommandFailed
from .promises import many_samples
from .table import Section, seconds, spread, verdict

FRESH, RESUME = 0.050, 0.100
NAMES = {
    "belady": "belady",
    "stateful": "torchdata StatefulDataLoader, 2 workers",
    "streaming": "MosaicML streaming, 2 workers",
}


def start(context):
    section = Section(
        ["dataset", "loader", "first batch", "first batch, going on in mid-epoch", ""]
    )
    for name, form, dataset in many_samples(context):
        loaders = {loader: dataset for loader in ("belady", "stateful")}
        if form.startswith("records"):
            loaders["streaming"] = context.folder / "records-many.mds"
            context.loader("mds.py", dataset, loaders["streaming"], "--size", form.split(":")[1])
        for loader, data in loaders.items():
            try:
                row(context, section, name, loader, data, form)
            except CommandFailed as error:
                if loader == "belady":
                    raise
                section.note(f"{NAMES[loader]} is left out: {error}")
    section.note(
        f"{MANY:,} samples, batch 64, shuffled; each run is a fresh process. "
        "The clock starts when everything is imported, and includes opening the dataset: belady has a "
        "snapshot, torchvision's `DatasetFolder` lists (records need no list), MosaicML reads its own "
        "index. All files are in the page cache. Going on: `load_state_dict` with a state that was saved after half an epoch."
    )
    return section


def row(context, section, name, loader, data, form):
    state = context.folder / f"state-{loader}-{form.split(':')[0]}"
    common = (loader, data, *(("--format", form) if loader != "streaming" else ()))
    # It also makes the snapshot, if there is none.
    context.loader("start.py", *common, "--save", state)
    fresh, resumed = [], []
    for _ in range(context.runs):
        fresh.append(context.loader("start.py", *common).json["first_batch_seconds"])
        resumed.append(
            context.loader("start.py", *common, "--resume", state).json["first_batch_seconds"]
        )
    judged = ""
    if loader == "belady":
        more = statistics.median(resumed) - statistics.median(fresh)
        judged = ", ".join(
            (
                verdict(statistics.median(fresh) <= FRESH, "at most 50 ms"),
                verdict(more <= RESUME, "at most 100 ms more"),
            )
        )
    section.row(name, NAMES[loader], spread(fresh, seconds), spread(resumed, seconds), judged)
