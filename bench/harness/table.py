"""Tables in markdown, how they were made, and their places in documents.

Every table of the documentation comes from here: `heading` says above it which command, commit and
machine made it, and of how many runs it is; `spread` shows a figure of several runs.
"""

import dataclasses
import datetime
import re
import statistics

from . import process

# The page whose tables the harnesses write; docs/performance.md shows what they come to.
METHODS = process.ROOT / "bench" / "METHODS.md"

# Fewer say nothing of how far figures spread.
LEAST_RUNS = 3


def heading(command, runs, machine=None, commit=None, date=None):
    """The line above a table. What is not given is that of this checkout, machine and day."""
    machine, commit = machine or process.machine(), commit or process.commit()
    date = date or datetime.date.today().isoformat()
    return (
        f"`{command}` at {commit}, {runs} {'run' if runs == 1 else 'runs'}, {date}, on {machine}:"
    )


# The runs of a table that `heading` is above. Headings of older methods were marked by hand, each in its way.
HEADING = re.compile(
    r"`[^`]+` at (?:commit \w+(?:, changed since)?|a commit that is not known), (\d+) runs?, \d{4}-\d\d-\d\d, on "
)


def runs_of(text):
    """Of how many runs a table is, or none if it was made by an older method or was not measured."""
    match = HEADING.match(text)
    return int(match[1]) if match else None


@dataclasses.dataclass
class Section:
    """What a section of the harness found."""

    head: list
    rows: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)

    def row(self, *cells):
        self.rows.append([str(cell) for cell in cells])

    def note(self, text):
        self.notes.append(text)

    def markdown(self):
        lines = ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines)

    def verdicts(self):
        """How many targets were met, and what is to be said of each that was missed."""
        texts = [(", ".join(filter(None, row[:-1][:2])), row[-1]) for row in self.rows]
        texts += [(note.split(":")[0], note) for note in self.notes]
        met = sum(text.count(MET) for _, text in texts)
        missed = [f"{what}: {found}" for what, text in texts for found in MISS.findall(text)]
        return met, missed


MET = "ok ("
MISS = re.compile(r"\*\*missed\*\* \(([^)]*)\)")


def verdict(good, target):
    """`target` has no brackets: this is how verdicts are found again."""
    return f"{'ok' if good else '**missed**'} ({target})"


def spread(values, text):
    """The median of several runs, and in brackets the least and the largest where they differ."""
    least, middle, largest = map(text, (min(values), statistics.median(values), max(values)))
    if least == largest:
        return middle
    number, _, unit = least.partition(" ")
    return f"{middle} ({number if largest.endswith(f' {unit}') else least}–{largest})"


def whole(value):
    return f"{value:,.0f}"


def times(value):
    return f"{value:.2f} ×"


def signed_percent(value):
    return f"{100 * value:+.1f} %"


def seconds(value):
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def size(value):
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def mib(value):
    return f"{value / (1 << 20):,.0f} MiB"


def rate(value):
    return f"{size(value)}/s"


def percent(value):
    return f"{100 * value:.1f} %"


def insert(document, name, text):
    """Puts `text` between the markers of `name`; raises if they are not there."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    before, marker, rest = document.partition(begin)
    _, closing, after = rest.partition(end)
    if not marker or not closing:
        raise ValueError(f"the document has no {begin} followed by {end}")
    return f"{before}{begin}\n{text.strip()}\n{end}{after}"


def sections(document):
    """The texts between markers, by name."""
    return dict(re.findall(r"<!-- bench:([\w-]+) -->\n(.*?)<!-- /bench:\1 -->", document, re.S))


def rows(text):
    """The rows of the first table in a text, by the names of their columns."""
    first = re.search(r"(?:^\|.*\n?)+", text, re.M)
    lines = [cells(line) for line in first[0].splitlines()] if first else []
    head = lines[0] if lines else []
    return [dict(zip(head, line, strict=True)) for line in lines[2:] if len(line) == len(head)]


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def median(cell):
    """A cell without the spread that `spread` puts behind the median."""
    return cell.split(" (")[0]


def number(cell):
    match = re.match(r"[+-]?[\d,.]+", cell)
    return float(match[0].replace(",", "")) if match else None
