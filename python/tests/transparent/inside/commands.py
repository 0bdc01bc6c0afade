"""Commands of every system. What they say and what they write has to be the same."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from transparent.inside import files, program


def run(*command: str | Path, stdin: bytes = b"", status: int = 0) -> Iterator[bytes]:
    """Returns the output of a command, on both channels."""
    done = subprocess.run([str(part) for part in command], input=stdin, capture_output=True)
    if done.returncode != status:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr.decode()}")
    yield done.stdout
    yield done.stderr


def tree(root: Path, *, exactly: bool = False) -> Iterator[bytes]:
    """All that is in a directory; `exactly`: also modes, times and links."""
    numbers: dict[int, int] = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        yield str(path.relative_to(root)).encode()
        if exactly:
            same = numbers.setdefault(facts.st_ino, len(numbers))
            attributes = {} if path.is_symlink() else os.listxattr(path)
            yield f"{same} {facts.st_mode:o} {facts.st_mtime_ns} {facts.st_nlink} {attributes}".encode()
        if stat.S_ISLNK(facts.st_mode):
            yield os.readlink(path).encode()
        elif stat.S_ISREG(facts.st_mode):
            yield path.read_bytes()


@program("cat", command="cat")
def cat(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("cat", *files(data))


@program("cp", command="cp")
def cp(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("cp", "-rL", data, scratch / "copy")
    yield from tree(scratch / "copy")


@program("cp -a", command="cp")
def cp_archive(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("cp", "-a", data, scratch / "copy")
    yield from tree(scratch / "copy", exactly=True)


@program("sha256sum", command="sha256sum")
def sha256sum(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("sha256sum", *files(data))


@program("dd", command="dd")
def dd(data: Path, scratch: Path) -> Iterator[bytes]:
    for path in files(data):
        yield from run("dd", f"if={path}", "bs=64k", "status=none")


@program("tar", command="tar")
def tar(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("tar", "--sort=name", "-C", data, "-cf", "-", ".")


@program("head", command="head")
def head(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("head", "-c", "1000", *files(data))


@program("grep -r", command="grep")
def grep(data: Path, scratch: Path) -> Iterator[bytes]:
    (output, errors) = run("grep", "-rc", "the owl", data)
    # It lists directories as they come.
    yield b"\n".join(sorted(output.splitlines()))
    yield errors


@program("find, xargs, md5sum", command="md5sum")
def find_and_xargs(data: Path, scratch: Path) -> Iterator[bytes]:
    line = 'find "$1" -type f -print0 | sort -z | xargs -0 -n 3 -P 2 md5sum | sort -k 2'
    yield from run("sh", "-c", line, "sh", data)


@program("diff -r", command="diff")
def diff(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("cp", "-rL", data, scratch / "copy")
    yield from run("diff", "-r", data, scratch / "copy")


@program("gzip", command="gzip")
def gzip(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("gzip", "-1c", *files(data))


@program("rsync -a", command="rsync")
def rsync(data: Path, scratch: Path) -> Iterator[bytes]:
    yield from run("rsync", "-aH", f"{data}/", scratch / "copy")
    yield from tree(scratch / "copy", exactly=True)


@program("bash: subshells, pipes, redirections", command="bash")
def bash(data: Path, scratch: Path) -> Iterator[bytes]:
    script = """
    cd "$1"
    for file in *.bin; do
        (wc -c < "$file"; cat < "$file" | md5sum; read -r line < lines.txt; echo "$line")
    done
    exec 3< lines.txt; head -n 1 <&3; cat <&3 | tail -n 2
    diff <(sort lines.txt) <(cat lines.txt | sort) && echo same
    """
    yield from run("bash", "-ec", script, "bash", data)
