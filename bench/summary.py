#!/usr/bin/env python3
"""What the tables of docs/performance.md come to: the best figure and the worst of each, and what was missed.

    python3 bench/summary.py            # prints it
    python3 bench/summary.py --write    # the figures into README.md, what was missed into docs/performance.md
    python3 bench/summary.py --check    # fails if these say something else than the tables

It measures nothing: every figure is one that a table shows, and comes with the name of its row there. Best
and worst are of all rows of belady in a table, or of all that stand beside it. A table that was made by an
older method is named; its figures are left out, and its verdicts are not counted.
"""

import argparse
import dataclasses
import pathlib
import re
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness.process import ROOT  # noqa: E402
from harness.table import MISS, MET, insert, runs_of  # noqa: E402

README, DOCUMENT = ROOT / "README.md", ROOT / "docs" / "performance.md"


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the summary: a table, a column of it, which rows count, and whether less is better."""

    what: str
    table: str
    column: str
    rows: Callable[[dict[str, str]], bool]
    less: bool = False
    # What each figure is, after it.
    of: str = ""
    # Columns that name a row.
    named: tuple[str, ...] = ()


def ours(row: dict[str, str]) -> bool:
    return row.get("loader", "").startswith("belady")


def with_bytes(row: dict[str, str]) -> bool:
    """Not lent to a loop that looks at no byte: there nothing is done that a peer could do slower."""
    return ours(row) and not (row["loader"] == "belady, lent" and row["the loop"] == "len")


LINES = (
    Line("samples copied from the RAM tier, beside memcpy", "ram", "of memcpy", lambda row: row["how"] == "copy",
         named=("samples", "threads")),
    Line("files in the page cache, beside a bare pread pool", "warm", "of the pool", lambda row: row["reader"] == "belady",
         named=("threads",)),
    Line("a slow source, later epochs, beside the least possible time", "slow", "of the bound",
         lambda row: row["loader"] == "belady", less=True, named=("cache",)),
    Line("four nodes on a slow source, later epochs, beside no I/O at all", "cluster", "of no I/O", ours, less=True,
         named=("loader",)),
    Line("four nodes on a slow source, later epochs, beside torch's DataLoader", "cluster", "belady is",
         lambda row: row["loader"].startswith("torch"), named=("loader",)),
    Line("training from a slow source, later epochs, beside torch's DataLoader", "python-train", "belady is",
         lambda row: row["loader"].startswith("torch"), named=("loader",)),
    Line("bytes copied or hashed in a Python loop, samples/s beside FFCV", "python-raw", "× FFCV", with_bytes, of="×",
         named=("samples", "the loop", "loader")),
    Line("ImageNet's transform, images a CPU-second beside each peer", "images", "belady is", lambda row: row["belady is"] != "",
         named=("loader", "threads")),
    Line("training on a GPU, beside no I/O", "gpu", "of no I/O", ours, named=("model", "loader")),
    Line("a program under `belady run` that touches no file of the dataset, time beside native", "transparent-programs",
         "ratio", lambda _: True, less=True, of="×", named=("program",)),
    Line("epoch 1 under `belady run` from a slow source, time beside no belady", "transparent-slow", "of no belady",
         lambda row: row["read"].startswith("belady"), less=True, named=("dataset", "read")),
    Line("operations at the source with room for 56 %, the first epoch counted", "transparent-slow",
         "all epochs, the first too", lambda row: row["read"] == "belady, 56 %", less=True, named=("dataset",)),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write it into README.md and docs/performance.md")
    parser.add_argument("--check", action="store_true", help="fail if they say something else")
    args = parser.parse_args()
    tables = sections(DOCUMENT.read_text())
    for path, name, text in ((README, "summary", summary(tables)), (DOCUMENT, "missed", missed(tables))):
        document = path.read_text()
        written = insert(document, name, text)
        if args.write:
            path.write_text(written)
        elif args.check and written != document:
            sys.exit(f"{path.name} does not say what the tables say: run python3 bench/summary.py --write")
        print(f"{text}\n")


def sections(document: str) -> dict[str, str]:
    """The texts between markers by their names, but for what is made here."""
    found = re.findall(r"<!-- bench:([\w-]+) -->\n(.*?)<!-- /bench:\1 -->", document, re.S)
    return {name: text for name, text in found if name != "missed"}


def summary(tables: dict[str, str]) -> str:
    lines, older = [], []
    for line in LINES:
        found, runs = figures(line, tables[line.table]), runs_of(tables[line.table])
        if runs is None or not found:
            older.append(line.what)
            continue
        lines.append(f"| {line.what} | {found[0]} | {found[-1] if len(found) > 1 else 'the same'} | {runs} |")
    if lines:
        lines = ["| what | best | worst | runs |", "|---|---|---|---|", *lines, ""]
    counted = [text for text in tables.values() if runs_of(text) is not None]
    met = sum(text.count(MET) for text in counted)
    not_met = sum(len(MISS.findall(text)) for text in counted)
    lines += [f"{len(counted)} of {len(tables)} tables were made by the present method. Of their targets {met} are met and "
              f"{not_met} are [missed](docs/performance.md#what-falls-short)."]  # fmt: skip
    if older:
        lines += ["", f"Not measured since their method changed: {'; '.join(older)}."]
    return "\n".join(lines)


def missed(tables: dict[str, str]) -> str:
    lines = ["| table | row | missed | runs |", "|---|---|---|---|"]
    for name, text in tables.items():
        for line in text.splitlines():
            for target in MISS.findall(line):
                row = ", ".join(cells(line)[:3]) if line.startswith("|") else line.partition(":")[0]
                lines.append(f"| {name} | {row} | {target} | {runs_of(text) or 'an older method'} |")
    return "\n".join(dict.fromkeys(lines))


def figures(line: Line, text: str) -> list[str]:
    """The figures of a line with their rows' names, the best first."""
    found = []
    for row in rows(text):
        if line.column in row and line.rows(row) and (value := number(row[line.column])) is not None:
            shown = row[line.column].split(" (")[0] + (f" {line.of}" if line.of else "")
            found.append((value, f"{shown} ({', '.join(named(row, column) for column in line.named)})"))
    return [text for _, text in sorted(found, reverse=not line.less)]


def named(row: dict[str, str], column: str) -> str:
    cell = row[column]
    return f"{cell} {column if cell != '1' else column.removesuffix('s')}" if cell.isdigit() else cell


def rows(text: str) -> list[dict[str, str]]:
    """The rows of the first table in a text, by the names of their columns."""
    lines = [cells(line) for line in text.splitlines() if line.startswith("|")]
    head = lines[0] if lines else []
    return [dict(zip(head, line, strict=True)) for line in lines[2:] if len(line) == len(head)]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def number(cell: str) -> float | None:
    match = re.match(r"[+-]?[\d,.]+", cell)
    return float(match[0].replace(",", "")) if match else None


if __name__ == "__main__":
    main()
