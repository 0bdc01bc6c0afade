#!/usr/bin/env python3
"""Judges the mutants that `cargo mutants` finds, all of a package in one build.

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

The tests run in the stages of `TARGETS`, and what one stage catches the next does not see. Every
stage runs once without a mutant; a mutant that needs several times the processor time or the time
of that run is a timeout.

    scripts/mutants.py                              # all, and writes docs/notes/mutants.md
    scripts/mutants.py --target peer                # one package
    scripts/mutants.py --only policy/belady         # what survives in some files
    scripts/mutants.py --target engine --every 4    # a sample: every fourth mutant
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTES = ROOT / "docs/notes/mutants.md"
VARIABLE = "BELADY_MUTANT"
# Fewer cases of property tests and simulations, and what fails need not be made small.
QUICK = {
    "PROPTEST_CASES": "64",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
    "SEEDS": "20",
    "RUST_BACKTRACE": "0",
}
OUTCOMES = ("caught", "timeout", "missed", "unviable", "not judged", "left out")


@dataclasses.dataclass(frozen=True)
class Stage:
    """Tests of one binary: of a library where `test` is empty."""

    package: str
    test: str = ""
    # Which tests: {module} is the mutated module, {policy} the mutated policy.
    filter: str = ""
    skip: tuple = ()
    # A regular expression of the files whose mutants this stage judges.
    files: str = ""


# Long statistics of what is not mutated, or which take minutes without optimisation.
LONG = (
    "frequency_placement_leaves_out_what_was_measured",
    "randperm_is_torchs",
    "sampler::permutation::",
    "disk_of_blocks_agrees_with_the_model",
    "warm_caches_of_100_million_samples",
)
# What policies share is judged by the conformance tests of all policies.
SHARED_BY_POLICIES = "policy/(mod|kind|holdings|shards)"

TARGETS = {
    "control": (
        Stage("belady-control", filter="{module}::", skip=LONG),
        Stage("belady-control", filter="sampler::permutation::", files="permutation"),
        Stage("belady-control", skip=LONG),
        Stage("belady-control", "access_stream", skip=LONG, files="sampler/"),
        Stage("belady-control", "resume", skip=LONG, files="sampler/"),
        Stage(
            "belady-control",
            "torch_golden",
            skip=("both_sides_of_the_threshold",),
            files="sampler/",
        ),
        Stage(
            "belady-sim",
            "conformance",
            filter="{policy}",
            files=f"^(?!.*{SHARED_BY_POLICIES}).*policy/",
        ),
        Stage("belady-sim", "conformance", files=SHARED_BY_POLICIES),
        Stage("belady-sim", "world", files="policy/"),
    ),
    "peer": (
        Stage("belady-peer", filter="protocol::"),
        Stage("belady-peer", "detsim"),
    ),
    "engine": (
        Stage("belady-engine", filter="peers::tests::"),
        Stage("belady-engine", filter="{module}::", skip=LONG),
        Stage("belady-engine", "delivery"),
        Stage("belady-engine", "peers"),
        Stage("belady-engine", "orders"),
        Stage("belady-engine", "disk"),
        Stage("belady-engine", skip=LONG),
        Stage("belady-engine", "changed_files"),
        Stage("belady-engine", "changed_under_caches"),
        Stage("belady-engine", "hanging_tiers"),
        Stage("belady-engine", "robustness"),
        Stage("belady-engine", "hanging_peers", files="peers/|fill/"),
        Stage("belady-engine", "partitions", files="peers/|fill/"),
    ),
    "data": (
        Stage("belady-data", filter="{module}::", skip=LONG),
        Stage("belady-data", filter="tier::", skip=LONG),
        Stage("belady-data", "tier_disk", files="disk/|mod|pins"),
        Stage("belady-data", "tier_edges", files="disk/|mod|pins"),
        Stage("belady-data", "tier_quota", files="disk/|mod|pins"),
    ),
}

# A mutated body that is sure to panic is judged as well; on the first line, which keeps its number.
ALLOWED = "#![allow(unconditional_panic, arithmetic_overflow, unconditional_recursion)] "

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


def crate(package):
    return "crates/" + package.removeprefix("belady-")


def list_mutants(package):
    """The package's mutants, numbered from one."""
    command = ["cargo", "mutants", "--list", "--json", "--package", package]
    mutants = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    for number, mutant in enumerate(mutants, 1):
        mutant |= {"number": number, "outcome": None}
    return mutants


class Source:
    """A file's text, and where its lines begin."""

    def __init__(self, text):
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def offset(self, place):
        return self.starts[place["line"] - 1] + place["column"] - 1

    def range(self, span):
        return self.offset(span["start"]), self.offset(span["end"])


def functions(source, mutants):
    """The functions with their mutants, as (start of the body, end, mutants), in order."""
    by_span = collections.defaultdict(list)
    for mutant in mutants:
        # A constant has no body to choose.
        span = mutant["function"] and source.range(mutant["function"]["span"])
        by_span[span or (0, 0)].append(mutant)
    last_end = 0
    for (begin, end), here in sorted(by_span.items(), key=lambda entry: entry[0]):
        body = source.text.index("{", begin) if end else 0
        # A function inside another one has no place of its own.
        if (
            body < last_end
            or not end
            or re.search(r"->\s*impl\b|\bconst fn\b", source.text[begin:body])
        ):
            for mutant in here:
                mutant["outcome"] = "not judged"
            continue
        last_end = end
        yield body, end, here


def woven(text, mutants):
    """The file's text with all bodies, and the lines of each mutant's."""
    source = Source(text)
    out, lines, at, line = [], {}, 0, 1

    def write(part):
        nonlocal line
        out.append(part)
        line += part.count("\n")

    for body, end, here in functions(source, mutants):
        write(text[at:body] + "{ match crate::mutant::chosen() {\n")
        for mutant in here:
            if mutant["outcome"] == "unviable":
                continue
            first = line
            begin, rest = source.range(mutant["span"])
            write(
                f"{mutant['number']}u32 => {text[body:begin]}{mutant['replacement']} {text[rest:end]}\n"
            )
            lines[mutant["number"]] = range(first, line)
        write(f"_ => {text[body:end]}\n}} }}")
        at = end
    write(text[at:])
    return "".join(out), lines


class Tree:
    """A copy of the repository whose one package is woven; its builds share the checkout's target."""

    def __init__(self, folder, package):
        self.folder = pathlib.Path(folder)
        self.package = package

    def put(self, name, content):
        """Writes only what differs, so that cargo builds no more than it has to."""
        path = self.folder / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def copy(self):
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        for name in filter(None, names.decode().split("\0")):
            path = ROOT / name
            if path.is_file() and not name.startswith(f"{crate(self.package)}/src/"):
                self.put(name, path.read_bytes())

    def weave(self, mutants):
        """Writes the package's sources; the lines of the mutants by file."""
        by_file = collections.defaultdict(list)
        for mutant in mutants:
            by_file[mutant["file"]].append(mutant)
        where = {}
        for path in (ROOT / crate(self.package) / "src").rglob("*"):
            name = str(path.relative_to(ROOT))
            if not path.is_file():
                continue
            content = path.read_bytes()
            if name in by_file:
                text, where[name] = woven(content.decode(), by_file[name])
                content = text.encode()
            if name == f"{crate(self.package)}/src/lib.rs":
                content = ALLOWED.encode() + content + MODULE.encode()
            self.put(name, content)
        return where

    def cargo(self, *command):
        """Cargo's messages, and what it wrote to the user if it failed."""
        done = subprocess.run(
            ["cargo", *command, "--message-format", "json",
             "--config", f"profile.dev.package.{self.package}.opt-level=0"],
            cwd=self.folder, env=os.environ | {"CARGO_TARGET_DIR": str(ROOT / "target")},
            capture_output=True, text=True,
        )  # fmt: skip
        return [
            json.loads(line) for line in done.stdout.splitlines()
        ], done.returncode and done.stderr[-4000:]

    def drop_unviable(self, mutants):
        """Leaves out what does not compile, until the rest does."""
        by_number = {mutant["number"]: mutant for mutant in mutants}
        while True:
            where = self.weave(mutants)
            messages, failed = self.cargo("check", "--package", self.package)
            unviable = set(blamed(messages, where))
            print(f"check: {len(unviable)} do not compile", flush=True)
            if not failed:
                return
            if not unviable:
                sys.exit(failed)
            for number in unviable:
                by_number[number]["outcome"] = "unviable"

    def build(self, stages):
        """The test binaries of these stages, by package and test."""
        found = {}
        for package in {stage.package for stage in stages}:
            tests = {stage.test for stage in stages if stage.package == package}
            arguments = [
                word for test in sorted(tests) for word in (["--test", test] if test else ["--lib"])
            ]
            messages, failed = self.cargo("test", "--no-run", "--package", package, *arguments)
            if failed:
                sys.exit(failed)
            for message in messages:
                if message.get("profile", {}).get("test") and message.get("executable"):
                    test = message["target"]["name"] if "test" in message["target"]["kind"] else ""
                    found[package, test] = message["executable"]
        return found


def blamed(messages, where):
    """The numbers of the mutants that the compiler's errors speak of."""
    for message in messages:
        error = message.get("message")
        if not isinstance(error, dict) or error.get("level") != "error":
            continue
        for span in error["spans"]:
            for number, lines in where.get(span["file_name"], {}).items():
                if span["is_primary"] and span["line_start"] in lines:
                    yield number


def module(file):
    """The folder's module, whose tests are most likely to notice."""
    parts = pathlib.Path(file.split("/src/")[1]).with_suffix("").parts
    return "::".join(parts[:-1] if len(parts) > 2 or parts[-1] == "mod" else parts)


def policy(file):
    return pathlib.Path(file.split("policy/")[-1]).parts[0].removesuffix(".rs")


class Judge:
    """Runs the stages on mutants, each within a few times what it takes without one."""

    def __init__(self, tree, stages):
        self.folder = tree.folder
        self.stages = stages
        self.binaries = tree.build(stages)
        self.usual = {}

    def tests(self, file):
        """The commands of the stages that judge this file, and where they run."""
        for stage in self.stages:
            if re.search(stage.files, file):
                chosen = stage.filter.format(module=module(file), policy=policy(file))
                skip = [word for name in stage.skip for word in ("--skip", name)]
                binary = self.binaries[stage.package, stage.test]
                yield (binary, *filter(None, [chosen]), *skip), self.folder / crate(stage.package)

    def measure(self, files):
        """What every command takes without a mutant."""
        for command, folder in sorted({test for file in files for test in self.tests(file)}):
            outcome, *usual = run(command, folder, 0, 600, 600)
            name = " ".join([pathlib.Path(command[0]).name, *command[1:]])
            print(f"{name}: {usual[0]:.1f} s of processor, {usual[1]:.1f} s", flush=True)
            if outcome:
                sys.exit(f"{name} fails without any mutant")
            self.usual[command] = usual

    def outcome(self, mutant):
        for command, folder in self.tests(mutant["file"]):
            processor, wall = self.usual[command]
            outcome, *_ = run(command, folder, mutant["number"], 5 + 5 * processor, 20 + 6 * wall)
            if outcome:
                return outcome
        return "missed"


def run(command, folder, number, processor, wall):
    """'caught', 'timeout', or None if the tests pass; with the seconds of processor and of time."""

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (int(processor) + 1,) * 2)
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30,) * 2)

    env = os.environ | QUICK | {VARIABLE: str(number), "CARGO_MANIFEST_DIR": str(folder)}
    began = time.monotonic()
    tests = subprocess.Popen(
        command, cwd=folder, env=env, preexec_fn=limit, start_new_session=True,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    clock = threading.Timer(wall, end, [tests.pid])
    clock.start()
    try:
        failed = any(line.endswith("FAILED\n") for line in tests.stdout)
    finally:
        took = time.monotonic() - began
        clock.cancel()
        # What fails leaves threads that wait, and processes that it started.
        end(tests.pid)
    _, status, usage = os.wait4(tests.pid, 0)
    tests.stdout.close()
    tests.returncode = os.waitstatus_to_exitcode(status)
    return verdict(failed, took > wall, tests.returncode), usage.ru_utime + usage.ru_stime, took


def end(session):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def verdict(failed, late, code):
    if failed:
        return "caught"
    if late or code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timeout"
    return "caught" if code else None


def judge_target(stages, args, known):
    """Judges one package's mutants, and writes what it finds into `known`."""
    package = stages[0].package
    chosen = [m for m in list_mutants(package) if not args.only or re.search(args.only, m["name"])]
    for mutant in chosen:
        before = known.get(mutant["name"])
        if mutant["number"] % args.every:
            mutant["outcome"] = "left out"
        elif before == "unviable" or (args.missed and before not in (None, "missed", "left out")):
            mutant["outcome"] = before
    known |= {m["name"]: m["outcome"] for m in chosen if known.get(m["name"]) in (None, "left out")}
    sample = [mutant for mutant in chosen if mutant["outcome"] in (None, "unviable")]
    print(f"{package}: {len(chosen)} mutants, {len(sample)} to judge", flush=True)
    if not sample:
        return chosen
    tree = Tree(args.tree, package)
    tree.copy()
    tree.drop_unviable(sample)
    known |= {mutant["name"]: mutant["outcome"] for mutant in sample if mutant["outcome"]}
    judge = Judge(tree, stages[: args.stages])
    to_run = [mutant for mutant in sample if mutant["outcome"] is None]
    judge.measure({mutant["file"] for mutant in to_run})
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for mutant, outcome in zip(to_run, pool.map(judge.outcome, to_run)):
            mutant["outcome"] = known[mutant["name"]] = outcome
            if outcome in ("missed", "timeout"):
                print(outcome, mutant["name"], flush=True)
            keep(args.numbers, known)
    return chosen


def keep(path, known):
    part = pathlib.Path(f"{path}.part")
    part.write_text(json.dumps(known, indent=1))
    part.replace(path)


def table(outcomes):
    """The lines of a table of {name: outcome}, a row for each file."""
    counts = collections.defaultdict(collections.Counter)
    for name, outcome in sorted(outcomes.items()):
        counts[name.split(":")[0].split("/src/")[1]][outcome or "left out"] += 1
    counts["all"] = sum(counts.values(), collections.Counter())
    yield "| file | " + " | ".join(OUTCOMES) + " | noticed, of viable |"
    yield "|---|" + "---:|" * (len(OUTCOMES) + 1)
    for file, of in counts.items():
        noticed = of["caught"] + of["timeout"]
        viable = noticed + of["missed"]
        share = f"{100 * noticed / viable:.0f} %" if viable else ""
        yield (
            f"| {file} | " + " | ".join(str(of[outcome]) for outcome in OUTCOMES) + f" | {share} |"
        )


def write_notes(known):
    """The figures and the names of what survived, between the comments of the notes."""
    text = NOTES.read_text()
    for name, stages in TARGETS.items():
        here = {
            mutant["name"]: known.get(mutant["name"]) for mutant in list_mutants(stages[0].package)
        }
        if not any(here.values()):
            continue
        missed = sorted(
            mutant.split("/src/")[1] for mutant, outcome in here.items() if outcome == "missed"
        )
        lines = [*table(here), "", "Missed:", "", *(f"- `{mutant}`" for mutant in missed)]
        head, rest = text.split(f"<!-- {name} -->\n", 1)
        tail = rest.split("<!-- end -->", 1)[1]
        text = head + f"<!-- {name} -->\n\n" + "\n".join(lines) + "\n\n<!-- end -->" + tail
    NOTES.write_text(text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--target", choices=TARGETS, action="append", help="one package; may be given repeatedly"
    )
    parser.add_argument(
        "--only", help="a regular expression of the names of mutants, which begin with their file"
    )
    parser.add_argument(
        "--every", type=int, default=1, metavar="K", help="a sample: every K-th mutant"
    )
    parser.add_argument(
        "--missed", action="store_true", help="judge what earlier calls missed or left out"
    )
    parser.add_argument(
        "--stages", type=int, metavar="N", help="with the first N stages of tests alone"
    )
    parser.add_argument(
        "--tree", default=str(ROOT / "out/mutants"), help="where the woven copy lies"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--numbers", default=str(ROOT / "out/mutants.json"), help="where outcomes are kept"
    )
    parser.add_argument(
        "--table", action="store_true", help="write the notes from kept outcomes, and judge nothing"
    )
    return parser.parse_args()


def main():
    args = arguments()
    numbers = pathlib.Path(args.numbers)
    numbers.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(numbers.read_text()) if numbers.exists() else {}
    for name in [] if args.table else args.target or TARGETS:
        chosen = judge_target(TARGETS[name], args, known)
        keep(numbers, known)
        print("\n".join(table({mutant["name"]: mutant["outcome"] for mutant in chosen})))
    if args.table or not (args.only or args.target or args.stages):
        write_notes(known)


if __name__ == "__main__":
    main()
