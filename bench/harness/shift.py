"""A shift in mid-run: how fast the split of the threads follows.

Eight ranks transform JPEGs behind a slow source. In one run the source becomes four times slower for a
third of the iterations, in the other the pictures of the middle third cost three times as much to
transform. The metrics are read all the time; docs/img/balance-shift-*.svg show the split over the iterations.
"""

import dataclasses
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

from .mount import Mount
from .process import ROOT, CommandFailed, run, say
from .table import Section, size, spread, verdict, whole

RANKS = 8
BATCH = 8
IMAGES = 19_200
THREADS = 12
# Iterations within which the split has to be where it stays.
WITHIN = 10
# Where it stays: so many threads around the median of the second half of a phase, if that differs by more
# from the phase before.
AROUND = 1
# t(γ) that a few threads saturate.
CURVE = {1: 150, 2: 280, 4: 500}
# What is shifted, the pictures, and what a rank computes on in a second: few enough pictures that the
# processors can transform the dear ones in that time.
SHIFTS = (
    ("source", "source four times slower", "even", "40MB/s"),
    ("transform", "transform three times dearer", "dear", "20MB/s"),
)
# Of the different pictures, for what they cost.
COST_EPOCHS = 10
TOKEN = "of-this-benchmark"
LOOK_SECONDS = 0.02
STEPS = [
    {"op": "Decode", "mode": "RGB", "apply_exif_orientation": False, "max_pixels": 10_000_000},
    {"op": "Resize", "size": [224, 224], "interpolation": "bilinear", "max_size": None, "antialias": True},
    {"op": "ToTensor", "dtype": "float32", "layout": "CHW"},
]  # fmt: skip
PHASES = ("before", "during", "after")


@dataclasses.dataclass
class Look:
    """The metrics at one moment."""

    iteration: float
    loading: int
    transforming: int


def shift(context):
    folder = context.folder / "shift"
    context.python(ROOT / "bench" / "loaders" / "shift_images.py", folder, IMAGES)
    iterations = IMAGES // (RANKS * BATCH)
    ends = [iterations * part // 3 for part in (1, 2, 3)]
    section = Section(
        ["shift", "phase", "threads that load", "threads that transform", "iterations until there", ""]
    )
    for name, title, pictures, consume in SHIFTS:
        changes_source = name == "source"
        runs = [
            watched(context, folder / pictures, consume, changes_source, ends)
            for _ in range(context.runs)
        ]
        before = []
        for phase, (begin, end) in enumerate(zip([0, *ends], ends)):
            rows = [Phase(looks, begin, end) for looks in runs]
            moved = phase > 0 and all(
                abs(row.transforming - was.transforming) > AROUND
                for row, was in zip(rows, before, strict=True)
            )
            followed, before = [row.followed for row in rows], rows
            section.row(
                title,
                PHASES[phase],
                spread([row.loading for row in rows], whole),
                spread([row.transforming for row in rows], whole),
                spread(followed, whole) if moved else "did not move" if phase else "",
                verdict(max(followed) <= WITHIN, f"{WITHIN} iterations") if moved else "",
            )
        picture = ROOT / "docs" / "img" / f"balance-shift-{name}.svg"
        picture.write_text(drawn(title, runs[0], ends))
    even, dear = (of_kind(context, folder / "kinds" / kind) for kind in ("even", "dear"))
    section.note(
        f"{IMAGES:,} JPEGs in order, one epoch of {iterations} iterations, {RANKS} ranks of batch {BATCH}, "
        f"{' and '.join(consume for *_, consume in SHIFTS)} each, a barrier after every step; `belady`; "
        f"{THREADS} threads; slowfs with {', '.join(f'{n}: {r} MB/s' for n, r in CURVE.items())}. A picture has "
        f"{size(even.size)} in the mean and a dear one {size(dear.size)}, and takes {1e3 * even.seconds:.2f} and "
        f"{1e3 * dear.seconds:.2f} ms of processor time, {dear.seconds / even.seconds:.1f} times as much. Threads: the "
        "median of the second half of a phase. *Iterations until there*: from the shift until the number of threads "
        f"that transform is first within {AROUND} of that; the shift begins where the ranks *deliver*, and the "
        "engine works a few iterations ahead of that."
    )
    return section


@dataclasses.dataclass
class Kind:
    """What a picture has and costs, in the mean."""

    size: float
    seconds: float


def of_kind(context, folder):
    files = list(folder.iterdir())
    command = [context.binary("belady"), "read", folder, "--format", "flat", "--batch", BATCH]
    command += ["--transform", json.dumps(STEPS), "--epochs", COST_EPOCHS, "--json"]
    spent = run(context.commands, command).cpu
    return Kind(
        statistics.mean(file.stat().st_size for file in files), spent / (COST_EPOCHS * len(files))
    )


class Phase:
    """What was seen between two shifts."""

    def __init__(self, looks, begin, end):
        seen = [look for look in looks if begin <= look.iteration < end]
        late = [look for look in seen if look.iteration >= (begin + end) / 2]
        if not late:
            raise CommandFailed("the metrics were not read in a part of the run")
        self.loading = statistics.median(look.loading for look in late)
        self.transforming = statistics.median(look.transforming for look in late)
        there = (
            look.iteration - begin
            for look in seen
            if abs(look.transforming - self.transforming) <= AROUND
        )
        self.followed = max(0, next(there, end - begin))


def watched(context, folder, consume, changes_source, ends):
    """Runs once, and returns what was seen."""
    order = [belady := context.binary("belady"), "read"]
    port = free_port()
    with Mount(context.commands, context.binary("slowfs"), folder, CURVE) as at:
        command = [
            *(*order, at.path, "--format", "flat", "--order", "sequential", "--batch", BATCH),
            *("--local-ranks", RANKS, "--barrier", "--consume", consume, "--threads", THREADS),
            *("--transform", json.dumps(STEPS), "--metrics", f"127.0.0.1:{port}", "--json"),
        ]
        command = [str(part) for part in command]
        context.commands.add(command)
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command, stdout=output, env=os.environ | {"BELADY_METRICS_TOKEN": TOKEN}
            )
            try:
                looks = follow(process, port, at.process if changes_source else None, ends)
            finally:
                process.kill()
                process.wait()
        if process.returncode != 0:
            raise CommandFailed(f"{belady.name} read failed")
    return looks


def follow(process, port, source, ends):
    looks, sent = [], 0
    while process.poll() is None:
        look = look_at(port)
        if look is None:
            time.sleep(LOOK_SECONDS)
            continue
        looks.append(look)
        # Slow for the middle third.
        if source is not None and sent < 2 and look.iteration >= ends[sent]:
            source.send_signal((signal.SIGUSR1, signal.SIGUSR2)[sent])
            sent += 1
        time.sleep(LOOK_SECONDS)
    say(f"{len(looks)} looks")
    return looks


def look_at(port):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    try:
        return Look(
            float(values["belady_delivered_samples_total"]) / (RANKS * BATCH),
            int(values['belady_threads{duty="load"}']),
            int(values['belady_threads{duty="transform"}']),
        )
    except KeyError as error:
        raise CommandFailed(f"the metrics lack {error}") from error


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 240, 44, 40, 36


def drawn(title, looks, ends):
    """The split over the iterations, as steps."""
    from pictures import STYLE

    most = max(look.loading + look.transforming for look in looks)
    right = WIDTH - 16
    across = (right - LEFT) / ends[-1]
    down = (HEIGHT - TOP - BOTTOM) / most

    def x(iteration):
        return LEFT + min(iteration, ends[-1]) * across

    def y(threads):
        return HEIGHT - BOTTOM - threads * down

    def line(kind, value):
        points = [f"M{x(0):.1f} {y(value(looks[0])):.1f}"]
        points += [f"H{x(look.iteration):.1f}V{y(value(look)):.1f}" for look in looks]
        colour = {"transform": "#3b2f9b", "load": "#d98e48"}[kind]
        return f'<path d="{"".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        f'<text class="title" x="16" y="22">Threads by duty: {title} between the dotted lines</text>',
        *(f'<line class="mark" x1="{x(end):.1f}" x2="{x(end):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>' for end in ends[:2]),
        f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>',
        *(f'<text class="soft" text-anchor="end" x="{LEFT - 8}" y="{y(at) + 4:.1f}">{at}</text>' for at in range(0, most + 1, 4)),
        line("load", lambda look: look.loading),
        line("transform", lambda look: look.transforming),
        f'<text x="{LEFT}" y="{HEIGHT - 12}" style="fill:#d98e48">load</text>',
        f'<text x="{LEFT + 44}" y="{HEIGHT - 12}" style="fill:#3b2f9b">transform</text>',
        f'<text class="soft" text-anchor="end" x="{right}" y="{HEIGHT - 12}">iteration {ends[-1]}</text>',
        "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"
