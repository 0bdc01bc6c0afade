#!/usr/bin/env python3
"""Cuts one figure out of a report, as an SVG that stands alone.

    python scripts/picture.py REPORT.html PICTURE.svg [FIGURE, counted from 1]

The report's colours come along, dark ones too: a viewer that prefers dark gets them.
A background of our own keeps the picture readable where page and preference disagree.
"""

import re
import sys

# Everything in the report's style sheet that a plot needs comes after this line.
PLOT_RULES = "/* Text in plots */"
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
MARGIN = 16


def style(report):
    sheet = re.search(r"<style>(.*?)</style>", report, re.S).group(1)
    colours = sheet[: sheet.index("* {")]
    plots = sheet[sheet.index(PLOT_RULES) :]
    plots = plots[: plots.index("@media")]
    return (
        f"{colours}\nsvg {{ font-family: {FONT}; }}\n.page {{ fill: var(--bg); }}\n{plots}".strip()
    )


def main(report_path, picture_path, figure=1):
    with open(report_path, encoding="utf-8") as file:
        report = file.read()
    svg = re.findall(r"<svg [^>]*>.*?</svg>", report, re.S)[int(figure) - 1]
    opening, rest = re.match(r"(<svg [^>]*>)(.*)", svg, re.S).groups()
    width, height = (int(n) for n in re.search(r'viewBox="0 0 (\d+) (\d+)"', opening).groups())
    box = (-MARGIN, -MARGIN, width + 2 * MARGIN, height + 2 * MARGIN)
    labels = re.search(r'aria-labelledby="[^"]*"', opening).group(0)
    with open(picture_path, "w", encoding="utf-8") as file:
        file.write(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="{} {} {} {}" width="{}" height="{}" '.format(
                *box, *box[2:]
            )
            + f'role="img" {labels}>\n<style>\n{style(report)}\n</style>\n'
            + '<rect class="page" x="{}" y="{}" width="{}" height="{}" rx="8"/>'.format(*box)
            + rest
            + "\n"
        )


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
