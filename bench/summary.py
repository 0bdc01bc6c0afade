#!/usr/bin/env python3
"""Takes from the tables of bench/METHODS.md what README.md and docs/performance.md say.

    python3 bench/summary.py            # prints it
    python3 bench/summary.py --write    # writes it, and draws the pictures (bench/pictures.py)
    python3 bench/summary.py --check    # fails if these say something else than the tables

It measures nothing: every figure is one that a table shows, with the name of its row there. Best and
worst are those of all rows of belady in a table, or of all rows beside it. A table that an older method
made is named; its figures are left out, and its verdicts are not counted.
"""

import argparse
import dataclasses
import pathlib
import subprocess
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness.process import ROOT
from harness.table import MET, METHODS, MISS, cells, insert, median, number, rows, runs_of, sections

README, PAGE = ROOT / "README.md", ROOT / "docs" / "performance.md"


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the summary: a table, a column of it, which rows count, and whether less is better."""

    topic: str  # The section of docs/performance.md that shows it.
    what: str
    table: str
    column: str
    rows: Callable[[dict[str, str]], bool]
    less: bool = False
    # The unit, after each figure.
    of: str = ""
    # Columns that name a row.
    named: tuple[str, ...] = ()
    # Shown in README.md too.
    readme: bool = False


def ours(row: dict[str, str]) -> bool:
    return row.get("loader", "").startswith("belady")


def theirs(row: dict[str, str]) -> bool:
    return row["loader"].startswith("torch")


def with_bytes(row: dict[str, str]) -> bool:
    """Not lent to a loop that looks at no byte: there nothing is done that a baseline could do slower."""
    return ours(row) and not (row["loader"] == "belady, lent" and row["the loop"] == "len")


LINES = (
    Line("slow", "a later epoch from a slow source, compared with the least possible time", "slow", "of the bound",
         lambda row: row["loader"] == "belady", less=True, named=("cache",), readme=True),
    Line("slow", "the same by the kernel's page cache (LRU) in as much memory", "slow", "of the bound",
         lambda row: row["loader"].startswith("page cache"), less=True, named=("cache",)),
    Line("train", "training from a slow source, later epochs, speed compared with torch's DataLoader", "python-train", "belady is",
         theirs, named=("loader",), readme=True),
    Line("cluster", "four nodes on a slow source, later epochs, time compared with no I/O", "cluster", "of no I/O", ours,
         less=True, named=("loader",)),
    Line("cluster", "four nodes on a slow source, later epochs, speed compared with torch's DataLoader", "cluster", "belady is",
         theirs, named=("loader",), readme=True),
    Line("images", "ImageNet's transform, images a CPU-second compared with each baseline", "images", "belady is",
         lambda row: row["belady is"] != "", named=("loader", "threads"), readme=True),
    Line("gpu", "training on a GPU, images/s compared with no I/O", "gpu", "of no I/O", ours, named=("model", "loader"), readme=True),
    Line("loop", "bytes copied or hashed in a Python loop, samples/s compared with FFCV", "python-raw", "× FFCV", with_bytes, of="×",
         named=("samples", "the loop", "loader")),
    Line("limits", "samples copied from the RAM tier, compared with memcpy", "ram", "of memcpy", lambda row: row["how"] == "copy",
         named=("samples", "threads"), readme=True),
    Line("limits", "files in the page cache, compared with a bare pread pool", "warm", "of the pool",
         lambda row: row["reader"] == "belady", named=("threads",), readme=True),
    Line("limits", "random reads from a cold disk, compared with fio's best", "cold", "of fio's best",
         lambda row: row["reader"] == "belady", named=("reader",)),
    Line("limits", "samples from another node's RAM over loopback, compared with iperf3", "network", "of iperf3",
         lambda row: row["by"] == "ours, tcp", named=("samples", "of")),
    Line("transparent", "open, read and close of a copied file under `belady run`, time compared with native", "transparent-calls",
         "ratio", lambda row: row["call"].startswith("open"), less=True, of="×", named=("call",)),
    Line("transparent", "a program under `belady run` that touches no file of the dataset, time compared with native",
         "transparent-programs", "ratio", lambda _: True, less=True, of="×", named=("program",)),
    Line("transparent", "epoch 1 under `belady run` from a slow source, time compared with no belady", "transparent-slow",
         "of no belady", lambda row: row["read"].startswith("belady"), less=True, named=("dataset", "read"), readme=True),
    Line("transparent", "operations at the source with room for 56 %, a later epoch, compared with no belady", "transparent-slow",
         "operations of no belady: a later epoch", lambda row: row["read"] == "belady, 56 %", less=True, named=("dataset",)),
    Line("transparent", "the same with the first epoch counted", "transparent-slow",
         "all epochs, the first too", lambda row: row["read"] == "belady, 56 %", less=True, named=("dataset",)),
    Line("start", "1.3 million samples: start of the loader to its first batch, Rust", "first-batch", "first batch",
         lambda _: True, less=True, named=("dataset",)),
    Line("start", "the same in Python, from the end of the imports", "python-start", "first batch", ours, less=True,
         named=("dataset",)),
    Line("start", "images: memory beyond the quotas, Python and libraries included", "images-memory", "beyond the quotas",
         lambda row: row["beyond the quotas"] != "", less=True, named=("loader", "threads")),
)  # fmt: skip

TOPICS = tuple(dict.fromkeys(line.topic for line in LINES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--write", action="store_true", help="write it into README.md and docs/performance.md"
    )
    parser.add_argument("--check", action="store_true", help="fail if they say something else")
    args = parser.parse_args()
    tables = sections(METHODS.read_text())
    texts = [
        (README, "summary", summary(tables)),
        (PAGE, "missed", missed(tables)),
        (PAGE, "verdicts", verdicts(tables)),
    ]
    texts += [
        (PAGE, topic, lines(tables, [line for line in LINES if line.topic == topic]))
        for topic in TOPICS
    ]
    for path, name, text in texts:
        document = path.read_text()
        written = insert(document, name, text)
        if args.write:
            path.write_text(written)
        elif args.check and written != document:
            sys.exit(
                f"{path.name} does not say what the tables say: run python3 bench/summary.py --write"
            )
        print(f"{text}\n")
    if args.write or args.check:
        pictures = [
            sys.executable,
            ROOT / "bench" / "pictures.py",
            *(["--check"] if args.check else []),
        ]
        sys.exit(subprocess.run(pictures).returncode)


def summary(tables: dict[str, str]) -> str:
    """The lines of README.md, and how many targets are met."""
    link = "docs/performance.md#what-falls-short"
    return f"{lines(tables, [line for line in LINES if line.readme])}\n\n{verdicts(tables, link)}"


def lines(tables: dict[str, str], chosen: list[Line]) -> str:
    shown, older = [], []
    for line in chosen:
        found, runs = figures(line, tables[line.table]), runs_of(tables[line.table])
        if runs is None or not found:
            older.append(line.what)
            continue
        shown.append(
            f"| {line.what} | {found[0]} | {found[-1] if len(found) > 1 else 'the same'} | {runs} |"
        )
    if shown:
        shown = ["| what | best | worst | runs |", "|---|---|---|---|", *shown]
    if older:
        shown += [
            *([""] if shown else []),
            f"Not measured since their method changed: {'; '.join(older)}.",
        ]
    return "\n".join(shown)


def verdicts(tables: dict[str, str], link: str = "#what-falls-short") -> str:
    counted = [text for text in tables.values() if runs_of(text) is not None]
    met = sum(text.count(MET) for text in counted)
    not_met = sum(len(MISS.findall(text)) for text in counted)
    return (
        f"{len(counted)} of {len(tables)} tables were made by the present method. Of their targets {met} are met and "
        f"{not_met} are [missed]({link})."
    )


def missed(tables: dict[str, str]) -> str:
    found = ["| table | row | missed | runs |", "|---|---|---|---|"]
    for name, text in tables.items():
        for line in text.splitlines():
            for target in MISS.findall(line):
                row = (
                    ", ".join(filter(None, map(median, cells(line)[:3])))
                    if line.startswith("|")
                    else line.partition(":")[0]
                )
                found.append(
                    f"| {name} | {row} | {target} | {runs_of(text) or 'an older method'} |"
                )
    return "\n".join(dict.fromkeys(found))


def figures(line: Line, text: str) -> list[str]:
    """The figures of a line with their rows' names, the best first."""
    found = []
    for row in rows(text):
        if (
            line.column in row
            and line.rows(row)
            and (value := number(row[line.column])) is not None
        ):
            shown = median(row[line.column]) + (f" {line.of}" if line.of else "")
            found.append(
                (value, f"{shown} ({', '.join(named(row, column) for column in line.named)})")
            )
    return [text for _, text in sorted(found, reverse=not line.less)]


def named(row: dict[str, str], column: str) -> str:
    cell = row[column]
    return (
        f"{cell} {column if cell != '1' else column.removesuffix('s')}" if cell.isdigit() else cell
    )


if __name__ == "__main__":
    main()
