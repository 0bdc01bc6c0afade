"""The demo's plots: a page of HTML, and the first plot of it as a picture that stands alone.

Three plots: where the time of each epoch goes, what the source gave in each, and the losses of
both runs, which lie on each other.
"""

from __future__ import annotations

from html import escape

from report import Found, per_epoch, summary, table

WIDTH = 720
LEFT = 235
RIGHT = 110
PLOT = WIDTH - LEFT - RIGHT
ROW = 22
GAP = 14

STYLE = """
:root { color-scheme: light dark; --bg: #fdfdfb; --ink: #23272f; --soft: #5b6270; --grid: #d9d9d2;
  --panel: #f5f5f1; --train: #cfd6e0; --wait: #da6648; --baseline: #ee9f57; --belady: #3b2f9b; }
@media (prefers-color-scheme: dark) { :root { --bg: #15171c; --ink: #e4e6ea; --soft: #a7adb9;
  --grid: #353a44; --panel: #1c1f26; --train: #465064; --wait: #e47c61; --baseline: #f0ac6b;
  --belady: #8f8cf2; } }
svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
text { font-size: 12.5px; fill: var(--ink); } .soft { fill: var(--soft); } .name { font-weight: 600; }
.page { fill: var(--bg); } .halo { paint-order: stroke; stroke: var(--bg); stroke-width: 4px; } .train { fill: var(--train); } .wait { fill: var(--wait); }
.baseline { fill: var(--baseline); } .belady { fill: var(--belady); }
.axis { stroke: var(--grid); } .mark { stroke: var(--soft); stroke-dasharray: 2 3; }
.line { fill: none; } .line.baseline { stroke: var(--baseline); stroke-width: 5; fill: none; }
.line.belady { stroke: var(--belady); stroke-width: 1.3; fill: none; }
"""
PAGE_STYLE = """
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 800px; margin: 0 auto; padding: 40px 24px; } svg { width: 100%; height: auto; }
pre { background: var(--panel); padding: 16px; overflow-x: auto; font-size: 13px; }
p { color: var(--soft); } h1 { font-size: 24px; } h2 { font-size: 18px; margin: 36px 0 4px; }
"""


def html(found: Found) -> str:
    """The whole page."""
    intro = (
        f"{found.total / 1e6:.0f} MB of pictures from a source of {found.rate / 1e6:.1f} MB/s "
        f"({found.how}); belady may keep {found.cache / 1e6:.0f} MB of them in RAM. Same network, same "
        "order, same machine."
    )
    parts = [
        f"<h1>One training, two loaders</h1><p>{escape(intro)}</p>",
        f"<pre>{escape(table(found))}</pre>",
        _figure("Where the time of each epoch goes", times(found)),
        _figure("What the source gave in each epoch", source(found)),
        _figure("The loss of every batch: one curve lies on the other", losses(found)),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>belady: demo</title>\n<style>{STYLE}{PAGE_STYLE}</style>\n<main>\n{body}\n</main>\n</html>\n"
    )


def picture(found: Found) -> str:
    """The first plot as a file of its own."""
    inner, height = times(found)
    margin = 16
    box = f"{-margin} {-margin} {WIDTH + 2 * margin} {height + 2 * margin}"
    said = escape("; ".join(" ".join(line.split()) for line in summary(found)[:3]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">\n<title>Time of each epoch '
        f"with {escape(found.title)} and with belady: {said}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="page" x="{-margin}" y="{-margin}" width="{WIDTH + 2 * margin}" '
        f'height="{height + 2 * margin}" rx="8"/>\n{inner}\n</svg>\n'
    )


def _figure(heading: str, plot: tuple[str, int]) -> str:
    inner, height = plot
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(heading)}"'
    return f"<h2>{escape(heading)}</h2>\n<svg {box}>\n{inner}\n</svg>"


def times(found: Found) -> tuple[str, int]:
    """A bar for each epoch, of training and waiting."""
    rows = {name: per_epoch(run) for name, run in found.runs.items()}
    longest = max(seconds for run in rows.values() for seconds, _, _ in run)
    across = PLOT / longest
    parts, y = [_legend(), ""], 34
    top = y
    for name, run in rows.items():
        for number, (seconds, waited, _) in enumerate(run, 1):
            trained = seconds - waited
            if number == 1:
                parts.append(_text(0, y + 15, name, "name"))
            parts += [
                _text(LEFT - 10, y + 15, f"epoch {number}", "soft", "end"),
                _rect("train", LEFT, y, trained * across, ROW - 4),
                _rect("wait", LEFT + trained * across, y, waited * across, ROW - 4),
                _text(LEFT + seconds * across + 8, y + 14, f"{seconds:.2f} s", "soft halo"),
            ]
            y += ROW
        y += GAP
    at = LEFT + found.at_hand * across
    parts[1] = f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{top - 4}" y2="{y - GAP}"/>'
    parts.append(_text(at, y + 4, "with all files at hand", "soft", "middle"))
    return "\n".join(parts), y + 12


def _legend() -> str:
    return "\n".join([
        _rect("train", LEFT, 2, 12, 12), _text(LEFT + 18, 13, "training", "soft"),
        _rect("wait", LEFT + 90, 2, 12, 12), _text(LEFT + 108, 13, "waiting for data", "soft"),
    ])  # fmt: skip


def source(found: Found) -> tuple[str, int]:
    """Two bars for each epoch: what was read with the baseline, and with belady."""
    runs = [("baseline", per_epoch(found.baseline)), ("belady", per_epoch(found.belady))]
    most = max(row[2] for _, run in runs for row in run) or 1
    parts, y = [], 4
    for number in range(len(runs[0][1])):
        parts.append(_text(LEFT - 10, y + 19, f"epoch {number + 1}", "soft", "end"))
        for kind, run in runs:
            given = run[number][2]
            width = given / most * PLOT
            parts.append(_rect(kind, LEFT, y, width, 12))
            parts.append(
                _text(
                    LEFT + width + 8,
                    y + 11,
                    f"{found.name if kind == 'baseline' else kind}, {given / 1e6:.1f} MB",
                    "soft",
                )
            )
            y += 14
        y += 10
    return "\n".join(parts), y


def losses(found: Found) -> tuple[str, int]:
    """The baseline's run as a thick line, belady's as a thin one upon it."""
    height, bottom = 220, 200
    runs = {"baseline": found.baseline["losses"], "belady": found.belady["losses"]}
    most = max(max(values) for values in runs.values())
    parts = [f'<line class="axis" x1="{LEFT}" x2="{LEFT + PLOT}" y1="{bottom}" y2="{bottom}"/>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - 10)
        parts.append(_text(LEFT - 10, y + 4, f"{share * most:.1f}", "soft", "end"))
    for kind, values in runs.items():
        step = PLOT / max(1, len(values) - 1)
        points = " ".join(
            f"{LEFT + step * at:.1f},{bottom - value / most * (bottom - 10):.1f}"
            for at, value in enumerate(values)
        )
        parts.append(f'<polyline class="line {kind}" points="{points}"/>')
    parts.append(_text(LEFT + PLOT, height - 4, f"{len(runs['belady'])} batches", "soft", "end"))
    return "\n".join(parts), height


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
