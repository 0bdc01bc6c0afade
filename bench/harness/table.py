"""Tables in markdown, and their places in docs/performance.md."""

import dataclasses
import re
import statistics


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
    """The best and the median of several runs; times and sizes, so the best is the least."""
    best, middle = min(values), statistics.median(values)
    return text(best) if len(values) == 1 else f"{text(best)} / {text(middle)}"


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
