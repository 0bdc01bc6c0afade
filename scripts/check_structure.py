"""Checks what no compiler checks about the shape of the Rust code.

    python3 scripts/check_structure.py            # every crate; exits 1 and lists what is wrong
    python3 scripts/check_structure.py engine     # one crate

Rules, the first three for code outside of tests:

* No cycles between modules. At every level of a crate, a module together with everything below it
  uses its siblings in one direction only. (A parent and its children may use each other: the parent
  is their facade.)
* One type name means one thing. A struct, enum, trait or union name is defined once in the workspace.
* Crates that must not link others do not: `NEVER_LINKS` lists them.
* A module with children is `x/mod.rs`; there is no `x.rs` beside a folder `x` of modules.
"""

import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Names that Rust programs give to a module's own error or result.
CONVENTIONAL = {"Error", "Result"}

# Transparent mode carries neither path; the native module of Python neither command nor simulator.
NEVER_LINKS = {
    "belady-base": {"belady-control", "belady-data"},
    "belady-board": {"belady-base", "belady-control", "belady-data"},
    "belady-shim": {"belady-base", "belady-control", "belady-data"},
    "belady-transparent": {"belady-control", "belady-data", "belady-engine"},
    "belady-control": {"belady-data", "belady-engine", "belady-sim"},
    "belady-python": {"belady", "belady-sim"},
    "belady-engine": {"belady-sim", "belady"},
}

COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|r(\#*)".*?"\1|b?"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'""", re.S
)
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"(?<![\w:])((?:crate|super|self)(?:::\w+)+)")
TYPE = re.compile(r"\b(?:struct|enum|trait|union)\s+([A-Z]\w*)")
ITEM = re.compile(
    r"\s*(#\[[^\]]*\]\s*)*(pub(\([^)]*\))?\s+)?((unsafe|async|extern)\s+)*"
    r"(fn|mod|impl|use|struct|enum|const|static|type|trait|macro_rules)\b"
)
TEST_FILES = re.compile(r"(^|/)(tests?|testing|conformance|one_node)(/|\.rs$)|_tests?\.rs$")


def without_comments(text: str) -> str:
    return COMMENT_OR_LITERAL.sub(" ", text)


def without_tests(text: str) -> str:
    """Removes items behind `#[cfg(test)]` or `#[cfg(all(test, ...))]`."""
    parts, at = [], 0
    for found in re.finditer(r"#\[cfg\((?:all\()?(?:test|shuttle_test)\b[^\]]*\]", text):
        if found.start() < at:
            continue
        parts.append(text[at : found.start()])
        at = end_of_item(text, found.end())
    parts.append(text[at:])
    return "".join(parts)


def end_of_item(text: str, start: int) -> int:
    """Returns the end of what begins at `start`: an item, or a field, a variant or an arm."""
    is_item = ITEM.match(text, start) is not None
    depth = 0
    for at in range(start, len(text)):
        character = text[at]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return at
            if depth == 0 and character == "}" and is_item:
                return at + 1
        elif depth == 0 and (character == ";" or (character == "," and not is_item)):
            return at + 1
    return len(text)


def expanded(tree: str) -> list[str]:
    """Expands `a::{b, c::{d, e}}` into `a::b`, `a::c::d`, `a::c::e`."""
    tree = re.sub(r"\s+as\s+\w+", "", tree)
    tree = re.sub(r"\s+", "", tree)
    brace = tree.find("{")
    if brace < 0:
        return [tree]
    head, body = tree[:brace], tree[brace + 1 : tree.rfind("}")]
    parts, depth, last = [], 0, 0
    for at, character in enumerate(body):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append(body[last:at])
            last = at + 1
    parts.append(body[last:])
    return [path for part in parts if part for path in expanded(head + part)]


def module_of(source: Path, file: Path) -> tuple[str, ...]:
    """Returns the module path of a file below a crate's `src`."""
    parts = file.relative_to(source).with_suffix("").parts
    if parts[-1] in ("mod", "lib", "main"):
        parts = parts[:-1]
    return parts


def used_modules(module: tuple[str, ...], text: str, modules: set[tuple[str, ...]]):
    """Yields the modules of this crate that the text of `module` names."""
    paths = [path for use in USE.findall(text) for path in expanded(use)]
    paths += PATH.findall(USE.sub(" ", text))
    for path in paths:
        names = path.removeprefix("::").split("::")
        base = module
        if names[0] == "crate":
            base, names = (), names[1:]
        elif names[0] == "self":
            names = names[1:]
        elif names[0] == "super":
            while names and names[0] == "super":
                base, names = base[:-1], names[1:]
        elif (*module, names[0]) not in modules:
            continue
        target = base
        for name in names:
            if (*target, name) not in modules:
                break
            target = (*target, name)
        yield target


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of two and more nodes that reach each other."""
    reach = {node: set(targets) for node, targets in graph.items()}
    changed = True
    while changed:
        changed = False
        for node, targets in reach.items():
            more = set().union(targets, *(reach.get(target, set()) for target in targets))
            if more != targets:
                reach[node], changed = more, True
    groups, seen = [], set()
    for node in sorted(reach):
        group = [other for other in sorted(reach) if other in reach[node] and node in reach[other]]
        if len(group) > 1 and node not in seen:
            seen.update(group)
            groups.append(group)
    return groups


def cycles(source: Path) -> list[str]:
    """Returns a sentence for each cycle among the modules of a crate."""
    files = [
        file
        for file in source.rglob("*.rs")
        if not TEST_FILES.search(str(file.relative_to(source)))
    ]
    texts = {
        module_of(source, file): without_tests(without_comments(file.read_text())) for file in files
    }
    modules = set(texts)
    # For each parent: which child (with all below it) uses which other child.
    levels: dict[tuple[str, ...], dict[str, dict[str, set[str]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(set))
    )
    for module, text in texts.items():
        for target in used_modules(module, text, modules):
            common = 0
            while common < min(len(module), len(target)) and module[common] == target[common]:
                common += 1
            if common < len(module) and common < len(target):
                levels[module[:common]][module[common]][target[common]].add("::".join(module))
    found = []
    for parent, edges in sorted(levels.items()):
        graph = {child: set(targets) for child, targets in edges.items()}
        for group in strongly_connected(graph):
            where = "::".join(("crate", *parent))
            detail = "; ".join(
                f"{child} -> {other}"
                for child in group
                for other in sorted(graph[child])
                if other in group
            )
            found.append(f"{source.parent.name}: modules of {where} form a cycle: {detail}")
    return found


def type_names(sources: list[Path]) -> list[str]:
    """Returns a sentence for each type name that is defined twice."""
    places = defaultdict(list)
    for source in sources:
        for file in sorted(source.rglob("*.rs")):
            if TEST_FILES.search(str(file.relative_to(source))):
                continue
            for name in TYPE.findall(without_tests(without_comments(file.read_text()))):
                where = str(file.relative_to(ROOT))
                # Twice in a file is one type with two bodies, chosen by a feature.
                if where not in places[name]:
                    places[name].append(where)
    return [
        f"{name} is defined {len(where)} times: {', '.join(where)}"
        for name, where in sorted(places.items())
        if len(where) > 1 and name not in CONVENTIONAL
    ]


def links() -> list[str]:
    """Returns a sentence for each crate that links one it must not link."""
    manifests = [tomllib.loads(file.read_text()) for file in ROOT.glob("crates/*/Cargo.toml")]
    direct = {
        manifest["package"]["name"]: {
            name for name in manifest.get("dependencies", {}) if name.startswith("belady")
        }
        for manifest in manifests
    }

    def reached(crate: str) -> set[str]:
        return direct[crate].union(*(reached(other) for other in direct[crate]))

    return [
        f"{crate} links {other}, which it must not"
        for crate, forbidden in NEVER_LINKS.items()
        for other in sorted(forbidden & reached(crate))
    ]


def beside_folders(source: Path) -> list[str]:
    """Returns a sentence for each `x.rs` beside a folder `x` of modules."""
    return [
        f"{file.relative_to(ROOT)} is beside a folder of modules; make it {file.stem}/mod.rs"
        for file in sorted(source.rglob("*.rs"))
        if any(file.with_suffix("").glob("*.rs"))
    ]


def main() -> int:
    wanted = sys.argv[1:]
    sources = [source for source in sorted(ROOT.glob("crates/*/src")) if source.is_dir()]
    chosen = [source for source in sources if not wanted or source.parent.name in wanted]
    wrong = [sentence for source in chosen for sentence in cycles(source)]
    mine = {str(source.relative_to(ROOT)) for source in chosen}
    wrong += [line for line in type_names(sources) if any(place in line for place in mine)]
    wrong += [sentence for source in chosen for sentence in beside_folders(source.parent)]
    wrong += links()
    fine = "no cycles between modules, no type name twice, no crate links too much, one kind of module"
    print("\n".join(wrong) or fine)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
