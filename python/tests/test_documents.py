"""Documents say what is true of conformance suites, fuzz targets, traits and tests."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
SUITE = re.compile(r"\| `(\w+)` \| (\d+) \| `([\w/.]+)` \|")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / line for line in listed.stdout.splitlines()]


def required_methods(trait: str) -> int:
    """How many methods an implementation of a trait has to write."""
    for path in tracked("crates/*/src/*.rs"):
        found = re.search(
            rf"pub trait {trait}\b[^{{]*\{{\n(.*?)^\}}", path.read_text(), re.M | re.S
        )
        if found:
            body = re.sub(r"//.*", "", found[1])
            return len(re.findall(r"^    (?:unsafe )?fn [^;{]*;", body, re.M))
    raise AssertionError(f"no crate has a trait {trait}")


def test_every_fuzz_target_is_listed() -> None:
    for target in tracked("fuzz/fuzz_targets/*.rs"):
        assert f"`{target.stem}`" in TEXT, f"CONTRIBUTING.md does not list {target.stem}"


def test_every_conformance_suite_is_listed_with_its_trait() -> None:
    listed = {ROOT / path for _, _, path in SUITE.findall(TEXT)}
    for path in tracked("crates/**/conformance.rs", "crates/**/conformance/mod.rs"):
        suite = path.parent if path.name == "mod.rs" else path
        assert suite in listed, f"CONTRIBUTING.md does not list {suite.relative_to(ROOT)}"


def test_traits_have_as_many_required_methods_as_is_said() -> None:
    suites = SUITE.findall(TEXT)
    assert len(suites) >= 4
    for trait, methods, _ in suites:
        assert required_methods(trait) == int(methods), trait


def test_tests_that_documents_name_exist() -> None:
    code = "\n".join(path.read_text() for path in tracked("crates/*.rs", "bench/*.rs", "*.py"))
    defined = set(re.findall(r"\b(?:fn|def) (\w+)", code))
    for path in tracked("*.md"):
        # Names of tests are sentences: six words at least.
        for name in re.findall(r"`((?:[a-z0-9]+_){5,}[a-z0-9]+)`", path.read_text()):
            assert name in defined, f"{path.relative_to(ROOT)} names {name}, which does not exist"


def test_the_walk_names_at_most_fifteen_files_each_reached_from_the_one_before() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    files = re.findall(r"^\| \d+ \| \[`([\w/.]+)`\]", text, re.M)
    assert 1 < len(files) <= 15
    for before, file in itertools.pairwise(files):
        assert (ROOT / file).is_file(), (
            f"ARCHITECTURE.md walks through {file}, which does not exist"
        )
        reached = module(file) in words(before) or module(before) in words(file)
        assert reached, f"neither of {before} and {file} mentions the other"


def module(file: str) -> str:
    """The name by which code mentions a file."""
    path = Path(file)
    return path.parent.name if path.stem == "mod" else path.stem.replace("_", "")


def words(file: str) -> str:
    """The text of a file, in which `PolicyDriver` and `policy_driver` are the same."""
    return (ROOT / file).read_text().lower().replace("_", "")


def test_every_type_and_file_of_the_glossary_exists() -> None:
    glossary = (ROOT / "docs" / "GLOSSARY.md").read_text()
    code = "\n".join(
        path.read_text() for path in tracked("crates/*.rs", "python/*.py", "bench/*.rs")
    )
    types = set(re.findall(r"`(?:[a-z_]+::)*([A-Z]\w*[a-z]\w*)", glossary))
    defined = set(re.findall(r"\b(?:struct|enum|trait|type|class) ([A-Z]\w*)", code))
    assert len(types) > 100
    assert types - defined == set()
    files = set(re.findall(r"(?:crates|python|bench)/[\w/]+(?:\.\w+)?", glossary))
    assert [path for path in files if not (ROOT / path).exists()] == []
