#!/usr/bin/env python3
"""Judges the mutants that `cargo mutants` finds, all of them in one build.

`cargo mutants` builds the crate and its tests anew for each mutant, which takes hours where there
are thousands. Here each function gets every mutated body beside its own, and a variable of the
environment says which one runs:

    fn area(a: u32, b: u32) -> u32 { match crate::mutant::chosen() {
        17 => { a + b }
        _ => { a * b }
    } }

Which mutants there are is asked of `cargo mutants --list`; its configuration is
.cargo/mutants.toml. A body that does not compile is unviable and is left out. A function whose
bodies cannot stand beside each other (it returns `impl Trait`, or is const) is left to
`cargo mutants` itself, and is counted as not judged.

The tests run in stages, and what one stage catches the next does not see: first those of the
mutated module, then all of the package, then those of other packages that are named here.

    scripts/mutants.py                       # writes docs/notes/mutants.md
    scripts/mutants.py --only policy/belady  # prints what survives in some files
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTES = ROOT / "docs/notes/mutants.md"
CRATE = "crates/control"
PACKAGE = "belady-control"
VARIABLE = "BELADY_MUTANT"
# Processor seconds of the package's own tests in one stage, and of those of others: five times what
# they take, so a mutant that takes longer does not end.
LIMIT, OTHERS_LIMIT = 10, 120
# Long statistics of what is not mutated here, or which take minutes without optimisation.
SKIP = ("frequency_placement_leaves_out_what_was_measured", "randperm_is_torchs")
# Tests of other packages: package, test, and the part of the source they speak of.
OTHERS = (("belady-sim", "conformance", "policy/"), ("belady-sim", "world", "policy/"))

SHARED = ("mod", "kind", "holdings", "shards")

MODULE = f"""
#[doc(hidden)]
pub mod mutant {{
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    pub fn chosen() -> u32 {{
        *CHOSEN.get_or_init(|| {{
            std::env::var("{VARIABLE}").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
        }})
    }}
}}
"""


QUICK = False


def offset(starts, place):
    return starts[place["line"] - 1] + place["column"] - 1


def put(path, text):
    """Writes only what differs, so that cargo builds no more than it has to."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def list_mutants(only, known):
    """The mutants, numbered, with what an earlier call found out of those that do not compile."""
    done = subprocess.run(
        ["cargo", "mutants", "--list", "--json", "--package", PACKAGE], cwd=ROOT, check=True, capture_output=True
    )
    mutants = json.loads(done.stdout)
    for number, mutant in enumerate(mutants, 1):
        mutant["number"] = number
        mutant["outcome"] = "unviable" if known.get(mutant["name"]) == "unviable" else None
    return mutants


class Function:
    """The bodies that one function can have."""

    def __init__(self, text, starts, span):
        begin, end = offset(starts, span["start"]), offset(starts, span["end"])
        self.body = text.index("{", begin)
        self.end = end
        signature = text[begin : self.body]
        self.judged = not re.search(r"->\s*impl\b|\bconst fn\b", signature)
        self.mutants = []


def woven(text, mutants):
    """The file's text with all bodies, and the lines of each mutant's."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    functions = {}
    for mutant in mutants:
        if mutant["function"] is None:
            # In a constant.
            mutant["outcome"] = "not judged"
            continue
        span = mutant["function"]["span"]
        key = offset(starts, span["start"])
        function = functions.setdefault(key, Function(text, starts, span))
        function.mutants.append(mutant)
    edits, last_end = [], 0
    for _, function in sorted(functions.items()):
        # A function inside another one has no place of its own.
        if not function.judged or function.body < last_end:
            for mutant in function.mutants:
                mutant["outcome"] = "not judged"
            continue
        last_end = function.end
        edits.append(function)
    out, lines, at = [], {}, 0
    line = 1

    def write(part):
        nonlocal line
        out.append(part)
        line += part.count("\n")

    for function in edits:
        write(text[at : function.body])
        write("{ match crate::mutant::chosen() {\n")
        for mutant in function.mutants:
            if mutant["outcome"] is not None:
                continue
            begin, end = (offset(starts, mutant["span"][side]) for side in ("start", "end"))
            first = line
            body = text[function.body : begin] + mutant["replacement"] + " " + text[end : function.end]
            write(f"{mutant['number']}u32 => {body}\n")
            lines[mutant["number"]] = (first, line)
        write(f"_ => {text[function.body : function.end]}\n}} }}")
        at = function.end
    write(text[at:])
    return "".join(out), lines


def cargo(tree, *command, env):
    return subprocess.run(["cargo", *command], cwd=tree, env=env, capture_output=True, text=True)


def weave_tree(tree, mutants):
    by_file = collections.defaultdict(list)
    for mutant in mutants:
        by_file[mutant["file"]].append(mutant)
    where = {}
    for file, here in by_file.items():
        text, lines = woven((ROOT / file).read_text(), here)
        put(tree / file, text)
        where[file] = lines
    put(tree / CRATE / "src/lib.rs", (ROOT / CRATE / "src/lib.rs").read_text() + MODULE)
    return where


def drop_unviable(tree, mutants, env):
    """Leaves out what does not compile, until the rest does."""
    by_number = {mutant["number"]: mutant for mutant in mutants}
    while True:
        where = weave_tree(tree, mutants)
        done = cargo(tree, "check", "--package", PACKAGE, "--profile", "mutants", "--message-format", "json", env=env)
        unviable = set()
        for line in done.stdout.splitlines():
            message = json.loads(line).get("message")
            if not isinstance(message, dict) or message.get("level") != "error":
                continue
            for span in message["spans"]:
                for number, (first, last) in where.get(span["file_name"], {}).items():
                    if first <= span["line_start"] < last:
                        unviable.add(number)
        print(f"check: {done.returncode}, {len(unviable)} do not compile", flush=True)
        if done.returncode == 0:
            return
        if not unviable:
            sys.exit(done.stderr[-4000:])
        for number in unviable:
            by_number[number]["outcome"] = "unviable"


def build(tree, env, files):
    """The test binaries that speak of these files, by package and name."""
    found = {}
    wanted = {PACKAGE: ["--lib"] if QUICK else ["--lib", "--tests"]}
    for package, test, part in () if QUICK else OTHERS:
        if any(part in file for file in files):
            wanted.setdefault(package, []).extend(["--test", test])
    for package, arguments in wanted.items():
        done = cargo(
            tree, "test", "--no-run", "--package", package, "--profile", "mutants", *arguments,
            "--message-format", "json", env=env,
        )
        if done.returncode != 0:
            sys.exit(done.stderr[-4000:])
        for line in done.stdout.splitlines():
            entry = json.loads(line)
            if entry.get("profile", {}).get("test") and entry.get("executable"):
                found[package, entry["target"]["name"]] = entry["executable"]
    return found


def module(file):
    """The folder's module, whose tests are most likely to notice."""
    parts = pathlib.Path(file).relative_to(f"{CRATE}/src").with_suffix("").parts
    return "::".join(parts[:-1] if len(parts) > 2 or parts[-1] == "mod" else parts)


def run(binary, arguments, number, directory):
    """'caught', 'timeout', or None if the tests pass."""

    own = pathlib.Path(binary).name.startswith(PACKAGE.replace("-", "_"))
    seconds = LIMIT if own and "permutation" not in arguments[0] else OTHERS_LIMIT

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

    # What fails need not be made small.
    quick = {"PROPTEST_CASES": "64", "PROPTEST_MAX_SHRINK_ITERS": "0", "RUST_BACKTRACE": "0"}
    env = os.environ | quick | {VARIABLE: str(number), "CARGO_MANIFEST_DIR": str(directory)}
    with subprocess.Popen(
        [binary, *arguments], cwd=directory, env=env, preexec_fn=limit, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as tests:
        for line in tests.stdout:
            if line.endswith("FAILED\n"):
                tests.kill()
                return "caught"
    if tests.returncode == 0:
        return None
    return "timeout" if tests.returncode in (-signal.SIGXCPU, -signal.SIGKILL) else "caught"


def stages(binaries, tree, file):
    skip = [word for name in SKIP for word in ("--skip", name)]
    at = tree / CRATE
    library = binaries[PACKAGE, PACKAGE.replace("-", "_")]
    yield library, [module(file) + "::", *skip], at
    if QUICK:
        return
    if "permutation" not in file:
        # Statistics of millions of orders.
        skip = [*skip, "--skip", "sampler::permutation::"]
    yield library, skip, at
    for (package, _), binary in binaries.items():
        if package == PACKAGE and binary != library:
            # Only these tests know torch's long permutations.
            yield binary, [] if "torch" in file else skip, at
    for package, name, part in OTHERS:
        if part in file:
            # The suite has a test for each policy; what policies share is judged by all of them.
            policy = pathlib.Path(file.split(part)[1]).parts[0].removesuffix(".rs")
            chosen = [policy] if name == "conformance" and policy not in SHARED else []
            yield binaries[package, name], [*chosen, *skip], tree / "crates" / package.removeprefix("belady-")


def judge(mutant, binaries, tree):
    for binary, arguments, at in stages(binaries, tree, mutant["file"]):
        outcome = run(binary, arguments, mutant["number"], at)
        if outcome:
            return outcome
    return "missed"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="a regular expression of the names of mutants, which begin with their file")
    parser.add_argument("--missed", action="store_true", help="judge what the last call missed, and nothing else")
    parser.add_argument("--quick", action="store_true", help="with the tests of the mutated module alone")
    parser.add_argument("--tree", default=str(ROOT / "out/mutants"), help="where the woven copy lies")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--numbers", default=str(ROOT / "out/mutants.json"), help="where outcomes are kept")
    parser.add_argument("--table", action="store_true", help="write the notes from kept outcomes, and judge nothing")
    args = parser.parse_args()
    if args.table:
        write_notes(json.loads(pathlib.Path(args.numbers).read_text()))
        return
    global QUICK
    QUICK = args.quick
    tree = pathlib.Path(args.tree)
    env = os.environ | {"RUSTFLAGS": "--cap-lints warn -A warnings"}
    numbers = pathlib.Path(args.numbers)
    known = {}
    if numbers.exists():
        known = {mutant["name"]: mutant["outcome"] for mutant in json.loads(numbers.read_text())}
    mutants = list_mutants(args.only, known)
    woven_files = {mutant["file"] for mutant in mutants} | {f"{CRATE}/src/lib.rs"}
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, files.decode().split("\0")):
        path = ROOT / name
        if name in woven_files or not path.is_file():
            continue
        if not (tree / name).exists() or (tree / name).read_bytes() != path.read_bytes():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, tree / name)
    print(len(mutants), "mutants", flush=True)
    drop_unviable(tree, mutants, env)
    chosen = [mutant for mutant in mutants if not args.only or re.search(args.only, mutant["name"])]
    files = {mutant["file"] for mutant in chosen}
    binaries = build(tree, env, files)
    print("built", flush=True)
    for binary, arguments, at in stages(binaries, tree, min(files)):
        if run(binary, arguments, 0, at):
            sys.exit(f"{binary} fails without any mutant")
    mutants = chosen
    open_ones = [mutant for mutant in mutants if mutant["outcome"] is None]
    if args.missed:
        for mutant in open_ones:
            mutant["outcome"] = known.get(mutant["name"])
        open_ones = [mutant for mutant in open_ones if mutant["outcome"] in (None, "missed")]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for mutant, outcome in zip(open_ones, pool.map(lambda m: judge(m, binaries, tree), open_ones)):
            mutant["outcome"] = outcome
            if outcome in ("missed", "timeout"):
                print(outcome, mutant["name"], flush=True)
    for mutant in mutants:
        if mutant["outcome"] == "not judged":
            print("not judged", mutant["name"])
    known |= {mutant["name"]: mutant["outcome"] for mutant in mutants}
    numbers.write_text(json.dumps([{"name": name, "outcome": outcome} for name, outcome in known.items()], indent=1))
    print("\n".join(table(mutants)))
    if not args.only and not args.quick:
        write_notes(mutants)


def table(mutants):
    outcomes = ("caught", "timeout", "missed", "unviable", "not judged")
    counts = collections.defaultdict(collections.Counter)
    for mutant in mutants:
        file = mutant["name"].split(":")[0].removeprefix(f"{CRATE}/src/")
        counts[file][mutant["outcome"] or "not judged"] += 1
        counts["all"][mutant["outcome"] or "not judged"] += 1
    counts["all"] = counts.pop("all")
    yield "| file | " + " | ".join(outcomes) + " | noticed, of viable |"
    yield "|---|" + "---:|" * 6
    for file, of in sorted(counts.items(), key=lambda row: (row[0] == "all", row[0])):
        noticed = of["caught"] + of["timeout"]
        viable = noticed + of["missed"]
        share = f"{100 * noticed / viable:.0f} %" if viable else ""
        yield f"| {file} | " + " | ".join(str(of[outcome]) for outcome in outcomes) + f" | {share} |"


def write_notes(mutants):
    """The figures and the names of what survived, between the comments of the notes."""
    text = NOTES.read_text()
    missed = [mutant["name"].removeprefix(f"{CRATE}/src/") for mutant in mutants if mutant["outcome"] == "missed"]
    parts = {"table": table(mutants), "missed": [f"- `{name}`" for name in sorted(missed)]}
    for name, lines in parts.items():
        head, rest = text.split(f"<!-- {name} -->\n", 1)
        tail = rest.split("<!-- end -->", 1)[1]
        text = head + f"<!-- {name} -->\n\n" + "\n".join(lines) + "\n\n<!-- end -->" + tail
    NOTES.write_text(text)


if __name__ == "__main__":
    main()
