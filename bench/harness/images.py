"""ImageNet's training transform: images a CPU-second, beside each baseline and a bare loop.

All do the same work (bench/loaders/images/task.py) on the same files, which lie in memory: the page
cache, or belady's RAM tier. What they deliver is compared, so that no loader wins by doing less.
"""

import dataclasses
import statistics

from .images_loaders import IMAGES, LOADERS, Data, present
from .process import CommandFailed
from .table import Section, percent, seconds, spread, times, verdict, whole

# How many times as fast belady is to be with as many threads, in images a CPU-second.
TARGETS = {
    "dali-fused": 1.7,
    "dali-full": 1.7,
    "ffcv-jpg-chw": 1.8,
    "ffcv-raw-chw": 1.0,
    "torch-pil": 2.5,
}
OF_BARE_LOOP = 0.95
TWO_THREADS = 1.9
# Crops are drawn differently, resizing filters differ a little: in normalised units, and as a share.
MEAN_DIFFERENCE, DEVIATION_DIFFERENCE = 0.05, 0.08


@dataclasses.dataclass
class Speed:
    """What the runs of a loader gave."""

    runs: list

    @property
    def cpu_rates(self):
        return [run["images"] / run["cpu_seconds"] for run in self.runs]

    @property
    def rates(self):
        return [run["images"] / run["seconds"] for run in self.runs]

    @property
    def a_cpu_second(self):
        return statistics.median(self.cpu_rates)

    @property
    def a_second(self):
        return statistics.median(self.rates)

    def cells(self):
        first = [run["first_batch_seconds"] for run in self.runs if "first_batch_seconds" in run]
        return (
            spread(self.cpu_rates, whole),
            spread(self.rates, whole),
            spread(first, seconds) if first else "",
        )


def speed(context):
    loaders, missing = present(context, LOADERS)
    data = Data(context, IMAGES)
    bare, found = [], {loader: [] for loader in loaders}
    # In turns, so that a busy neighbour meets all.
    for _ in range(context.runs):
        bare.append(context.example("bare_loop", data.folder).json)
        for loader, runs in found.items():
            runs.append(data.run(loader).json)
    alike = compare(found)
    section = table(Speed(bare), {loader: Speed(runs) for loader, runs in found.items()})
    section.note(parts(bare))
    describe(section, data, alike, missing)
    return section


def table(bare, speeds):
    section = Section(
        [
            "loader",
            "threads",
            "images a CPU-second",
            "images/s",
            "import and first batch",
            "belady is",
            "",
        ]
    )
    section.row("bare loop in Rust", 1, *bare.cells(), "", "")
    ours = {
        loader.threads: speed for loader, speed in speeds.items() if loader.ours and loader.cached
    }
    for loader, one in speeds.items():
        mine = ours.get(loader.threads)
        gain = times(mine.a_cpu_second / one.a_cpu_second) if mine and not loader.ours else ""
        judged = (
            judge_ours(loader, bare, ours) if loader.ours else judge_baseline(loader, one, mine)
        )
        section.row(loader.name, loader.threads, *one.cells(), gain, judged)
    return section


def judge_baseline(loader, baseline, mine):
    target = TARGETS.get(loader.key)
    if target is None or mine is None:
        return ""
    text = f"at least {target:g} ×" if target > 1 else "ahead of it"
    return verdict(mine.a_cpu_second >= target * baseline.a_cpu_second, text)


def judge_ours(loader, bare, ours):
    if not loader.cached:
        return ""
    if loader.threads == 1:
        share = ours[1].a_cpu_second / bare.a_cpu_second
        return (
            f"{percent(share)} of the bare loop, {verdict(share >= OF_BARE_LOOP, 'at least 95 %')}"
        )
    gain = ours[2].a_second / ours[1].a_second
    return f"{times(gain)} one thread, {verdict(gain >= TWO_THREADS, 'at least 1.9 ×')}"


def compare(found):
    """That all deliver alike images: their means and deviations beside those of the first baseline.
    The largest differences."""
    runs = {loader: runs[0] for loader, runs in found.items()}
    known = next((run for loader, run in runs.items() if loader.key == "torch-pil"), None)
    known = known or next(iter(runs.values()))
    mean = deviation = 0.0
    for loader, run in runs.items():
        off = max(abs(a - b) for a, b in zip(run["mean"], known["mean"], strict=True))
        wide = max(
            abs(a / b - 1) for a, b in zip(run["deviation"], known["deviation"], strict=True)
        )
        if off > MEAN_DIFFERENCE or wide > DEVIATION_DIFFERENCE:
            raise CommandFailed(
                f"{loader.title} delivers other images: means {run['mean']}, deviations "
                f"{run['deviation']}, where others have {known['mean']} and {known['deviation']}"
            )
        mean, deviation = max(mean, off), max(deviation, wide)
    return mean, deviation


def parts(bare):
    """Where the bare loop's time goes, of its best run."""
    best = min(bare, key=lambda run: run["cpu_seconds"] / run["images"])
    # Measured by the clock, told in CPU time.
    scale = best["cpu_seconds"] / sum(best["parts"].values()) / best["images"]
    shares = ", ".join(
        f"{name} {spent * scale * 1e6:,.0f} µs" for name, spent in best["parts"].items()
    )
    return f"An image in the bare loop: {shares}."


def describe(section, data, alike, missing):
    section.note(
        f"{data.count:,} JPEG files of 500x375, {data.bytes / data.count / 1e3:,.0f} KB in the mean, made by "
        "[`photographs.py`](../bench/photographs.py). Runs are of whole epochs for at least ten "
        "seconds after an epoch that is not counted; CPU-seconds of all processes. *belady is*: its images a "
        "CPU-second with as many threads, over this loader's, both medians. *Bare loop*: "
        "[`bare_loop.rs`](../crates/transform/examples/bare_loop.rs), the same decoder, resizing and "
        "normalisation, files in memory, into one batch again and again. belady has a RAM tier that holds all "
        "files; others, and *no cache*, read them from the page cache. FFCV stores the images anew: as JPEG of "
        "the same quality, or as pixels, five times the bytes. Its normalisation leaves channels last; in the "
        "rows without these words they are copied to channels first, which is the task."
    )
    section.note(
        "All deliver float32 of (64, 3, 224, 224) with alike values: means of channels differ by at most "
        f"{alike[0]:.3f} from torch's with PIL, deviations by {percent(alike[1])}. DALI, by its default, does not "
        "interpolate colours that a JPEG stores at half the resolution; FFCV resizes with OpenCV's area filter; "
        "the others antialias."
    )
    for reason in missing:
        section.note(f"Not measured: {reason}.")
