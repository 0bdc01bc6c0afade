"""The command line that harnesses of sections share: which to measure, how often, where the tables
go, and what came of it."""

import argparse
import os
import signal
import subprocess
import sys
import time

from . import process, table


class Results:
    """What became of the sections, told at the end."""

    def __init__(self):
        self.met, self.missed, self.failed = 0, [], []

    def add(self, name, section):
        met, missed = section.verdicts()
        self.met += met
        self.missed += [f"{name}: {what}" for what in missed]

    def text(self):
        lines = [
            f"{self.met} targets met, {len(self.missed)} missed, {len(self.failed)} sections not measured"
        ]
        lines += [f"  missed        {what}" for what in self.missed]
        lines += [f"  not measured  {what}" for what in self.failed]
        return "\n".join(lines)


class Harness:
    """Sections, functions from a context to a `Section`, by name, how a context is made, and the page of the
    tables."""

    def __init__(self, script, description, sections, make_context, document=table.METHODS):
        self.script, self.description = script, description
        self.sections, self.make_context = sections, make_context
        self.document = document

    def main(self):
        """Measures what the command line asks for."""
        try:
            self._main()
        except KeyboardInterrupt:
            sys.exit("interrupted; nothing is left running or mounted")

    def _main(self):
        args = self._arguments()
        cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
        if load > cores / 4:
            process.say(
                f"Load {load:.1f} on {cores} cores: other programs are running, and the figures will suffer."
            )
        signal.signal(signal.SIGTERM, stop)
        target, results, start = process.target_directory(), Results(), time.monotonic()
        chosen = args.only or list(self.sections)
        for at, name in enumerate(chosen, 1):
            process.say(
                f"[{at}/{len(chosen)}] {name}, after {(time.monotonic() - start) / 60:.1f} min"
            )
            text = self._measure(name, target, args.runs, results)
            if text is None:
                continue
            print(f"\n## {name}\n\n{text}", flush=True)
            if args.write_docs:
                write(self.document, name, text)
        print(f"\n{results.text()}\nin {(time.monotonic() - start) / 60:.1f} min", flush=True)
        if results.failed:
            sys.exit(1)

    def _arguments(self):
        parser = argparse.ArgumentParser(description=self.description)
        parser.add_argument(
            "--only", action="append", choices=self.sections, help="measure only this; repeatable"
        )
        parser.add_argument(
            "--runs", type=int, default=table.LEAST_RUNS, help="runs of each command"
        )
        parser.add_argument(
            "--write-docs",
            action="store_true",
            help=f"write the tables into {self.document.relative_to(process.ROOT)}",
        )
        args = parser.parse_args()
        if args.runs < 1:
            parser.error("--runs must be at least 1")
        if args.write_docs and args.runs < table.LEAST_RUNS:
            parser.error(
                f"--write-docs wants --runs {table.LEAST_RUNS} or more: fewer do not show how figures spread"
            )
        return args

    def _measure(self, name, target, runs, results):
        """The section's text, or none if it could not be measured."""
        start = time.monotonic()
        try:
            context = self.make_context(target, runs)
            section = self.sections[name](context)
        except (process.CommandFailed, OSError) as error:
            results.failed.append(f"{name}: {error}")
        except KeyError as error:
            results.failed.append(f"{name}: a command's JSON has no key {error}")
        else:
            results.add(name, section)
            process.say(f"{name}: {time.monotonic() - start:.0f} s")
            commands = "\n".join(context.commands.seen)
            made = table.heading(f"python3 bench/{self.script} --only {name} --runs {runs}", runs)
            return f"{made}\n\n{section.markdown()}\n\n```sh\n{commands}\n```"
        process.say(f"not measured: {results.failed[-1]}")
        return None


def write(document, name, text):
    """Puts a section's text into its page, and best and worst figures where they are quoted."""
    document.write_text(table.insert(document.read_text(), name, text))
    summary = [sys.executable, process.ROOT / "bench" / "summary.py", "--write"]
    subprocess.run(summary, check=True, stdout=subprocess.DEVNULL)


def stop(*_):
    """Told to end: leave by way of everything that cleans up."""
    raise KeyboardInterrupt
