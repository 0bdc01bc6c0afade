#!/usr/bin/env python3
"""Draws the pictures of docs/performance.md from the tables in bench/METHODS.md.

    python3 bench/pictures.py            # writes docs/img/bench-*.svg
    python3 bench/pictures.py --check    # fails if a picture does not show what its table says

It measures nothing: the length and the text of a bar are a cell of a table. Colours follow the viewer's
preference for light or dark, on a background that belongs to the picture.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Iterable
from html import escape

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness.process import ROOT
from harness.table import METHODS, median, number, rows, sections

FOLDER = ROOT / "docs" / "img"

WIDTH, LEFT, RIGHT, MARGIN = 760, 262, 96, 16
BAR, STEP, GAP = 16, 21, 14

# Plain colours, since some viewers know no variables.
STYLE = """
text { font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif; fill: #23272f; }
.title { font-size: 14px; font-weight: 600; } .group { font-weight: 600; } .soft { fill: #5b6270; }
.page { fill: #fdfdfb; } .value { paint-order: stroke; stroke: #fdfdfb; stroke-width: 4px; } .axis { stroke: #d9d9d2; } .mark { stroke: #5b6270; stroke-dasharray: 3 3; }
.belady { fill: #3b2f9b; } .baseline { fill: #d98e48; } .bound { fill: #b9bfca; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e6ea; } .soft { fill: #a7adb9; }
.page { fill: #15171c; } .value { stroke: #15171c; } .axis { stroke: #353a44; } .mark { stroke: #a7adb9; }
.belady { fill: #8f8cf2; } .baseline { fill: #e0a166; } .bound { fill: #4d5667; }
}
""".strip()


@dataclasses.dataclass(frozen=True)
class Bar:
    """One cell of a table."""

    name: str
    kind: str  # belady, baseline or bound: its colour
    value: float
    text: str


@dataclasses.dataclass(frozen=True)
class Picture:
    """Bars in groups, longest possible bar at the right edge."""

    name: str
    title: str
    groups: tuple[tuple[str, tuple[Bar, ...]], ...]
    # A dotted line at this value.
    mark: float | None = None


def bar(row: dict[str, str], name: str, column: str) -> Bar:
    cell = median(row[column])
    value = number(cell)
    if value is None:
        raise ValueError(f"{row}: `{column}` has no number")
    return Bar(name, kind(name), value / 1e3 if cell.endswith(" ms") else value, cell)


def kind(name: str) -> str:
    if name in ("bound", "no I/O", "bare loop in Rust", "none: a list of buffers"):
        return "bound"
    return "belady" if "belady" in name and not name.startswith("no belady") else "baseline"


def bars(found: Iterable[dict[str, str]], label: str, column: str) -> tuple[Bar, ...]:
    return tuple(bar(row, row[label], column) for row in found if row[column])


def pictures(tables: dict[str, str]) -> list[Picture]:
    of = {name: rows(text) for name, text in tables.items()}
    return [
        slow(of["slow"]), train(of["python-train"]), cluster(of["cluster"]), images(of["images"]), gpu(of["gpu"]),
        limits(of), loop(of["python-raw"]), transparent(of["transparent-slow"]),
    ]  # fmt: skip


def slow(found: list[dict[str, str]]) -> Picture:
    caches = ("none", "30% RAM", "60% RAM", "100% RAM")
    groups = (
        (f"cache: {cache}", bars((row for row in found if row["cache"] == cache and "simulate" not in row["loader"]), "loader", "later epochs"))
        for cache in caches
    )  # fmt: skip
    return Picture(
        "bench-slow",
        "One node, slow source: time of an epoch after the first (shorter is better)",
        tuple(groups),
    )


def train(found: list[dict[str, str]]) -> Picture:
    groups = tuple(
        (column, bars(found, "loader", column)) for column in ("epoch 1", "later epochs")
    )
    return Picture(
        "bench-train",
        "Training a CNN from a slow source: time of an epoch (shorter is better)",
        groups,
    )


def cluster(found: list[dict[str, str]]) -> Picture:
    shown = [row for row in found if "simulate" not in row["loader"]]
    return Picture("bench-cluster", "Four nodes, slow source: time of an epoch after the first (shorter is better)",
                   (("", bars(shown, "loader", "later epochs")),))  # fmt: skip


def images(found: list[dict[str, str]]) -> Picture:
    shown = [row for row in found if row["threads"] == "1"]
    return Picture("bench-images", "ImageNet's training transform, one thread: images a CPU-second (longer is better)",
                   (("", bars(shown, "loader", "images a CPU-second")),))  # fmt: skip


def gpu(found: list[dict[str, str]]) -> Picture:
    models = dict.fromkeys(row["model"] for row in found if row["of no I/O"])
    groups = (
        (model, bars((row for row in found if row["model"] == model), "loader", "of no I/O"))
        for model in models
    )
    return Picture(
        "bench-gpu",
        "Training on a GPU: images/s, of the same training without I/O (longer is better)",
        tuple(groups),
        mark=100,
    )


def limits(of: dict[str, list[dict[str, str]]]) -> Picture:
    def ram(size: str) -> tuple[Bar, ...]:
        shown = [row for row in of["ram"] if row["samples"] == size and row["how"] == "copy"]
        return tuple(bar(row, f"belady, {threads(row)}", "of memcpy") for row in shown)

    warm = tuple(
        bar(row, f"belady, {threads(row)}", "of the pool")
        for row in of["warm"]
        if row["reader"] == "belady"
    )
    cold = tuple(
        bar(row, "belady", "of fio's best") for row in of["cold"] if row["reader"] == "belady"
    )
    network = tuple(
        bar(row, f"belady, {row['samples']} samples", "of iperf3")
        for row in of["network"]
        if row["by"] == "ours, tcp" and row["of iperf3"] and row["of"] == "256 MiB"
    )
    groups = (
        ("copied from RAM, 110 KB: of memcpy", ram("110,000 B")), ("copied from RAM, 1 KB: of memcpy", ram("1,000 B")),
        ("files in the page cache: of a pread pool", warm), ("cold disk: of fio's best", cold),
        ("another node's RAM, loopback: of iperf3", network),
    )  # fmt: skip
    return Picture(
        "bench-limits",
        "Compared with the machine itself, 100 % (longer is better)",
        groups,
        mark=100,
    )


def threads(row: dict[str, str]) -> str:
    return f"{row['threads']} thread{'' if row['threads'] == '1' else 's'}"


def loop(found: list[dict[str, str]]) -> Picture:
    shown = [row for row in found if row["samples"] == "110,000 B" and row["the loop"] == "hashes"]
    return Picture("bench-loop", "A Python loop that hashes samples of 110 KB: samples/s (longer is better)",
                   (("", bars(shown, "loader", "samples/s")),))  # fmt: skip


def transparent(found: list[dict[str, str]]) -> Picture:
    kinds = ("no belady", "no belady, page cache", "belady, all fits", "belady, 56 %")
    shown = [
        row for row in found if row["dataset"].startswith("10,000 files") and row["read"] in kinds
    ]
    groups = tuple((column, bars(shown, "read", column)) for column in ("epoch 1", "later epochs"))
    return Picture(
        "bench-transparent",
        "An unmodified program, 10,000 small files, slow source: time of an epoch (shorter is better)",
        groups,
    )


def svg(picture: Picture) -> str:
    most = max(bar.value for _, group in picture.groups for bar in group)
    across = (WIDTH - LEFT - RIGHT) / most
    parts, lines, y = [text(0, 12, picture.title, "title")], [], 30
    for name, group in picture.groups:
        if name:
            parts.append(text(0, y + 12, name, "group"))
            y += STEP
        lines.append(line("axis", LEFT, y - 3, y + STEP * len(group) - 2))
        if picture.mark is not None:
            lines.append(
                line("mark", LEFT + picture.mark * across, y - 3, y + STEP * len(group) - 2)
            )
        for each in group:
            parts += [
                text(LEFT - 10, y + 12, each.name, "soft", "end"),
                f'<rect class="{each.kind}" x="{LEFT}" y="{y}" width="{max(1.0, each.value * across):.1f}" height="{BAR}"/>',
                text(LEFT + each.value * across + 8, y + 12, each.text, "value"),
            ]
            y += STEP
        y += GAP
    bottom = y - GAP
    box = (-MARGIN, -MARGIN, WIDTH + 2 * MARGIN, bottom + 2 * MARGIN)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="{} {} {} {}" width="{}" height="{}" role="img">\n'.format(
            *box, *box[2:]
        )
        + f"<title>{escape(picture.title)}</title>\n<style>\n{STYLE}\n</style>\n"
        + '<rect class="page" x="{}" y="{}" width="{}" height="{}" rx="8"/>\n'.format(*box)
        + "\n".join([*lines, *parts])
        + "\n</svg>\n"
    )


def line(style: str, x: float, top: int, bottom: int) -> str:
    return f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'


def text(x: float, y: float, said: str, style: str, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(said)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="fail if a picture does not show what its table says"
    )
    args = parser.parse_args()
    for picture in pictures(sections(METHODS.read_text())):
        path, drawn = FOLDER / f"{picture.name}.svg", svg(picture)
        if not args.check:
            path.write_text(drawn)
        elif not path.exists() or path.read_text() != drawn:
            sys.exit(
                f"{path.relative_to(ROOT)} does not show what the tables say: run python3 bench/pictures.py"
            )


if __name__ == "__main__":
    main()
