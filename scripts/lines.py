"""Counts lines of code of commits, without blank lines, comments and documentation.

    python3 scripts/lines.py REV...        # for example: 110ca07 HEAD

Tests are counted separately: test files, and Rust items behind `#[cfg(test)]`.
"""

import io
import re
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from pathlib import PurePath

from check_structure import COMMENT_OR_LITERAL, TEST_FILES, without_tests

TESTS = re.compile(rf"{TEST_FILES.pattern}|(^|/)(tests|testing)/")
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}


def rust_code(text: str) -> str:
    """Returns Rust without comments; a literal stays, as long as it was."""

    def kept(found: re.Match[str]) -> str:
        whole = found[0]
        return "" if whole.startswith(("//", "/*")) else '"' + "\n_" * whole.count("\n") + '"'

    return COMMENT_OR_LITERAL.sub(kept, text)


def lines_of(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def rust_lines(text: str) -> tuple[int, int]:
    """Returns the lines of the code and of its unit tests."""
    code = rust_code(text)
    main = lines_of(without_tests(code))
    return main, lines_of(code) - main


def python_lines(text: str) -> int:
    lines, starts = set(), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        documents = starts and token.type == tokenize.STRING
        if token.type not in LAYOUT and not documents:
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type != tokenize.COMMENT:
            starts = token.type in LAYOUT
    return len(lines)


def counted(revision: str) -> Counter[str]:
    """Returns the lines of code of a commit by group."""
    archive = subprocess.run(["git", "archive", revision], check=True, stdout=subprocess.PIPE).stdout
    lines: Counter[str] = Counter()
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            kind = PurePath(member.name).suffix
            content = files.extractfile(member)
            if kind not in (".rs", ".py", ".pyi") or content is None:
                continue
            text = content.read().decode()
            code, unit_tests = rust_lines(text) if kind == ".rs" else (python_lines(text), 0)
            lines["tests" if TESTS.search(member.name) else group(member.name)] += code
            lines["tests"] += unit_tests
    return lines


def group(name: str) -> str:
    if name.startswith("crates/"):
        return "crates"
    return "package" if name.startswith("python/belady/") else "tools"


def main() -> None:
    # Tools: benchmarks, fuzz targets, scripts, the demo and examples.
    groups = ("crates", "package", "tools", "tests")
    print(f"{'commit':<12}" + "".join(f"{name:>10}" for name in groups))
    for revision in sys.argv[1:] or ["HEAD"]:
        lines = counted(revision)
        print(f"{revision:<12}" + "".join(f"{lines[name]:>10,}" for name in groups))


if __name__ == "__main__":
    main()
