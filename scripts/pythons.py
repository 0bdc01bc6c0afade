#!/usr/bin/env python3
"""Runs the Python tests with every Python of 3.11 to 3.14 that is found: `make test-pythons`.

    python3 scripts/pythons.py WHEEL                                      # all that are found
    python3 scripts/pythons.py WHEEL --python 3.13 --python /opt/3.14/bin/python3
    python3 scripts/pythons.py WHEEL -- -k fork                           # arguments of pytest

The wheel is one for all of them (abi3). Each Python gets packages of its own by scripts/python_env.py
(some gigabytes each, kept in the cache directory) and an environment of its own, .venv-3.12 and so on. A
package of python/requirements-test.txt that has no wheel for a Python is marked there, and the tests that
need it are skipped. The last lines say for each Python what passed and which tests did not run.

It looks for python3.12 in the PATH and in the folders of pyenv.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import not_run

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


def main() -> None:
    wheel, wanted, options = arguments()
    told, outcomes = [], []
    for one in wanted:
        python = find(one)
        if python is None:
            told.append(f"{one}: not tested, no such Python is found")
            continue
        passed, text = test(python, wheel, options)
        told.append(f"{one} ({python}): {text}")
        outcomes.append(passed)
    print("\n" + "\n".join(told))
    if not outcomes or not all(outcomes):
        sys.exit(1)


def arguments() -> tuple[Path, list[str], list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--python",
        action="append",
        help="a version or an executable, in place of all that are found",
    )
    parser.epilog = "Arguments of pytest follow after --; without them it runs all of python/tests."
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:end])
    return (
        given.wheel.resolve(),
        given.python or list(VERSIONS),
        sys.argv[end + 1 :] or ["python/tests"],
    )


def find(wanted: str) -> Path | None:
    """The executable of a version, or the one that was given; one that does not run is none: pyenv leaves a
    `python3.12` in the PATH that ends with an error unless this version is switched on."""
    if os.sep in wanted:
        found, version = [Path(wanted)], None
    else:
        named = shutil.which(f"python{wanted}")
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
        found = [Path(named)] if named else []
        found += sorted(pyenv.glob(f"{wanted}.*/bin/python"))
        version = wanted
    return next((path for path in found if runs(path, version)), None)


def runs(python: Path, version: str | None) -> bool:
    try:
        asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True)
    except OSError:
        return False
    said = asked.stdout.strip()
    return asked.returncode == 0 and (said == version if version else said in VERSIONS)


def test(python: Path, wheel: Path, options: list[str]) -> tuple[bool, str]:
    """Whether all tests passed, and what is to be said of them."""
    version = subprocess.check_output([python, "-c", ASK], text=True).strip()
    made = subprocess.run([python, ROOT / "scripts" / "python_env.py", "--own"])
    if made.returncode != 0:
        return False, "its packages cannot be installed (see above)"
    inside = ROOT / f".venv-{version}" / "bin" / "python"
    pip = [
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-deps",
        "--force-reinstall",
    ]
    subprocess.run([inside, *pip, wheel], check=True)
    with tempfile.TemporaryDirectory() as folder:
        skipped = Path(folder) / "not-run.txt"
        environment = os.environ | {not_run.VARIABLE: str(skipped)}
        print(f"\n== Python {version}: {python}", flush=True)
        with subprocess.Popen(
            [inside, "-m", "pytest", *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as pytest:
            assert pytest.stdout is not None
            last = ""
            for line in pytest.stdout:
                print(line, end="", flush=True)
                last = line.strip(" =\n") or last
        return pytest.returncode == 0, f"{last}; {not_run.summary(not_run.recorded(skipped))}"


if __name__ == "__main__":
    main()
