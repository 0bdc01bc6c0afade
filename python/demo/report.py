"""What the demo found, in numbers and as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Found:
    """Sizes in bytes, rates in bytes a second, the seconds of an epoch with all files at hand, and
    what the training programs reported."""

    total: int
    cache: int
    rate: float
    at_hand: float
    # The baseline's name: torch, or plain reader.
    name: str
    baseline: dict[str, Any] = field(default_factory=dict)
    # The baseline with page cache, where that was measured.
    pages: dict[str, Any] = field(default_factory=dict)
    belady: dict[str, Any] = field(default_factory=dict)
    how: str = ""

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        pages = {f"{self.name}, page cache": self.pages} if self.pages else {}
        return {self.title: self.baseline, **pages, "belady": self.belady}

    @property
    def words(self) -> str:
        return self.name if self.name == "torch" else f"the {self.name}"

    @property
    def title(self) -> str:
        return "torch DataLoader" if self.name == "torch" else self.name


def per_epoch(run: dict[str, Any]) -> list[tuple[float, float, int]]:
    """Seconds, seconds waited, and bytes from the source, of each epoch."""
    found, before = [], 0
    for epoch in run["epochs"]:
        found.append((epoch["seconds"], epoch["waited"], epoch["source_bytes"] - before))
        before = epoch["source_bytes"]
    return found


def sums(rows: list[tuple[float, float, int]]) -> tuple[float, float, int]:
    return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)


def table(found: Found) -> str:
    """All runs side by side, epoch by epoch, and what it comes to."""
    runs = {name: per_epoch(run) for name, run in found.runs.items()}
    lines = [
        (f"{'':<8}" + "   ".join(f"{name:^30}" for name in runs)).rstrip(),
        f"{'epoch':<8}" + "   ".join([f"{'time':>8}  {'waited':>8}  {'source':>10}"] * len(runs)),
    ]
    for number, epochs in enumerate(zip(*runs.values(), strict=True), 1):
        lines.append(f"{number:<8}" + "   ".join(map(_cells, epochs)))
    lines.append(f"{'all':<8}" + "   ".join(_cells(sums(run)) for run in runs.values()))
    return "\n".join([*lines, "", *summary(found)])


def _cells(row: tuple[float, float, int]) -> str:
    seconds, waited, source = row
    return f"{seconds:6.2f} s  {waited:6.2f} s  {source / 1e6:7.1f} MB"


def summary(found: Found) -> list[str]:
    """What it comes to, a sentence a line."""
    base, belady, name = per_epoch(found.baseline), per_epoch(found.belady), found.words
    (t, waited_t, bytes_t), (b, waited_b, bytes_b) = sums(base), sums(belady)
    later_t, later_b = sums(base[1:]), sums(belady[1:])
    same = all(run["losses"] == found.belady["losses"] for run in found.runs.values())
    equal = "equal to the last bit" if same else "DIFFERENT, which they must not be"
    return [
        f"speed-up       {t / b:.2f} times; {later_t[0] / later_b[0]:.2f} times after the first epoch",
        *_beside_pages(found, b, later_b[0]),
        f"stall time     {waited_t:.1f} s of {t:.1f} s with {name}, {waited_b:.1f} s of {b:.1f} s with belady",
        f"  later epochs {later_t[1]:.1f} s of {later_t[0]:.1f} s with {name}, {later_b[1]:.1f} s of {later_b[0]:.1f} s with belady",
        f"source bytes   {bytes_t / 1e6:.0f} MB with {name}, {bytes_b / 1e6:.0f} MB with belady",
        f"an epoch       {later_t[0] / len(base[1:]):.2f} s with {name}, {later_b[0] / len(belady[1:]):.2f} s with "
        f"belady, {found.at_hand:.2f} s with all files at hand",
        f"losses         {len(found.baseline['losses'])} of each, {equal}",
    ]


def _beside_pages(found: Found, seconds: float, later: float) -> list[str]:
    if not found.pages:
        return []
    pages = per_epoch(found.pages)
    return [
        f"  page cache   {sums(pages)[0] / seconds:.2f} times; {sums(pages[1:])[0] / later:.2f} times after the first "
        f"epoch, beside {found.words} with page cache in as much memory"
    ]
