"""Says which tests did not run, and why: the last lines of `make test`.

    python3 scripts/not_run.py --begin    # forgets the tests of an earlier run
    python3 scripts/not_run.py            # prints those of this one

A test that cannot run on this machine passes or is skipped, which its runner hides or counts. So
it appends a line with its reason and its name to the file that BELADY_TEST_NOT_RUN names:
`belady_testing::not_run` in Rust, `python/tests/not_run.py` for pytest's skips, and the Makefile for
what it leaves out as a whole. Tests of Rust that are marked `#[ignore]` are found in the source.
"""

import argparse
import os
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "BELADY_TEST_NOT_RUN"
#: With its reason, and the name of the test that follows.
IGNORED = re.compile(
    r'^\s*#\[ignore(?:\s*=\s*"([^"]*)")?\]\s*\n(?:\s*#\[.*\]\s*\n)*\s*fn (\w+)', re.MULTILINE
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--begin", action="store_true", help="forget the tests of an earlier run"
    )
    begin = arguments.parse_args().begin
    if VARIABLE not in os.environ:
        sys.exit(f"{VARIABLE} does not name the file; `make test` sets it")
    file = Path(os.environ[VARIABLE])
    if begin:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        return
    print(summary(recorded(file) | ignored(ROOT)))


def recorded(file: Path) -> set[tuple[str, str]]:
    """Reasons and tests, as tests have written them; one that ran twice says it twice."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {(reason, test) for reason, _, test in (line.partition("\t") for line in lines)}


def ignored(root: Path) -> set[tuple[str, str]]:
    """Tests of Rust that are marked as not to be run."""
    return {
        (f"ignored: {reason or 'no reason is given'}", f"{file.relative_to(root)}: {name}")
        for folder in ("crates", "bench")
        for file in sorted((root / folder).rglob("*.rs"))
        for reason, name in IGNORED.findall(file.read_text())
    }


def summary(tests: set[tuple[str, str]]) -> str:
    if not tests:
        return "every test ran"
    lines = [f"not run: {len(tests)} test{'s' if len(tests) > 1 else ''}"]
    for reason in sorted({reason for reason, _ in tests}):
        # pytest's cases of one test are one line.
        names = Counter(name.partition("[")[0] for its, name in tests if its == reason)
        lines.append(f"  {reason} ({names.total()})")
        lines += [
            f"    {name}" + (f", {cases} cases" if cases > 1 else "")
            for name, cases in sorted(names.items())
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
