#!/usr/bin/env python3
"""Counts words that tell software as a tale of people, and citations of papers by a file's number.

    python3 scripts/check_language.py            # lists each place; exits 1 if there is one
    python3 scripts/check_language.py docs       # only below these paths

CONTRIBUTING.md, "Language", says what to write instead. It looks at every tracked text file: documentation,
comments, error messages, names of tests.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WORDS = re.compile(
    r"(?<![A-Za-z])(nobody|whoever|somebody|anybody|everybody|he[ _]would|seed 00[0-4])(?![A-Za-z0-9])",
    re.IGNORECASE,
)
TEXT = {
    ".c",
    ".html",
    ".json",
    ".md",
    ".py",
    ".pyi",
    ".rs",
    ".sh",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
    "",
}
# Files that quote the words themselves.
ALLOWED = {"scripts/check_language.py", "docs/notes/error-messages.md", "CONTRIBUTING.md"}
# What others wrote, and what programs wrote.
LEFT_OUT = ("LICENSE", "fuzz/corpus/", "crates/control/tests/golden/", "docs/img/")


def main() -> None:
    found = Counter()
    for path in tracked(sys.argv[1:]):
        for number, line in enumerate(lines(ROOT / path), 1):
            for match in WORDS.finditer(line):
                found[match[1].lower().replace("_", " ")] += 1
                print(f"{path}:{number}: {match[1]}: {line.strip()[:100]}")
    if found:
        counts = ", ".join(f"{word} {count}" for word, count in found.most_common())
        sys.exit(f"{found.total()} words to replace: {counts}")


def tracked(below: list[str]) -> list[str]:
    """Paths that git knows, without those that are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *below],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = listed.stdout.split("\0")[:-1]
    return [
        path
        for path in paths
        if Path(path).suffix in TEXT and path not in ALLOWED and not path.startswith(LEFT_OUT)
    ]


def lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
        return []


if __name__ == "__main__":
    main()
