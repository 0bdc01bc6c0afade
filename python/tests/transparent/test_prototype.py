"""What the published prototype of transparent tiering was seen to do. Ours does none of it.

It sleeps a second at each start, hangs under four threads, returns closed descriptors, prints to
the program's output, never caches for `cat` or `open().read()` (see test_programs.py), stops all
placement at the first file that does not fit, loses writes, and does nothing after fork (see
test_processes.py)."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from transparent.inside import files
from transparent.launching import Conversation, arguments, copies, fill, finished, wait_for_copies
from transparent.source_watch import SourceWatch

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def python(code: str, *arguments: str | Path) -> list[str | Path]:
    return [sys.executable, "-c", textwrap.dedent(code), *arguments]


def test_does_not_hang_under_four_threads(tree: Path, level: Path) -> None:
    """Nor under eight, from the first byte on: files are copied while they are read."""
    code = """
    import pathlib, random, sys
    from concurrent.futures import ThreadPoolExecutor
    paths = [pathlib.Path(name) for name in sys.argv[1:]]
    right = {path: path.read_bytes() for path in paths}
    def read(number):
        order = random.Random(number).sample(paths, len(paths))
        return all(path.read_bytes() == right[path] for _ in range(20) for path in order)
    with ThreadPoolExecutor(8) as pool:
        print(all(pool.map(read, range(8))))
    """
    assert finished(tree, [level], python(code, *files(tree))).stdout == b"True\n"


@needs_strace
def test_does_not_sleep(tree: Path, level: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    calls = "trace=nanosleep,clock_nanosleep,poll,ppoll,select,pselect6,pause"
    finished(tree, [level], ["strace", "-f", "-o", trace, "-e", calls, "cat", tree / "a.bin"])
    assert [line for line in trace.read_text().splitlines() if "exited with" not in line] == []


@needs_strace
def test_a_known_copy_is_read_without_output_and_without_the_source(
    tree: Path, level: Path, tmp_path: Path
) -> None:
    """Each copy is compared with its source once in a run.

    From then on no call names the dataset.
    """
    fill(tree, level)
    trace = tmp_path / "trace"
    line = 'cat "$@" > /dev/null; exec strace -f -o "$TRACE" -e trace=%file,write cat "$@"'
    program = ["sh", "-c", line, "sh", *files(tree)]
    done = finished(tree, [level], program, environ={"TRACE": str(trace)})
    assert done.stdout == b"".join(path.read_bytes() for path in files(tree))
    assert done.stderr == b""
    calls = [line for line in trace.read_text().splitlines() if "execve(" not in line]
    assert not [line for line in calls if str(tree) in line]
    assert sum("open" in line and "/files/" in line for line in calls) == len(files(tree))


def test_prints_nothing_of_its_own(tree: Path, level: Path) -> None:
    for _ in range(2):
        done = finished(
            tree, [level], ["sh", "-c", 'echo out; echo err >&2; cat "$1"', "sh", tree / "a.bin"]
        )
        assert done.stdout == b"out\n" + (tree / "a.bin").read_bytes()
        assert done.stderr == b"err\n"


def test_never_returns_a_closed_or_foreign_descriptor(tree: Path, level: Path) -> None:
    """Threads open and close all the time; each descriptor is the right file's until it is closed."""
    code = """
    import os, random, sys, threading
    paths = sys.argv[1:]
    right = {path: open(path, "rb").read() for path in paths}
    wrong = []
    def read(number):
        draw = random.Random(number)
        for _ in range(500):
            path = draw.choice(paths)
            descriptor = os.open(path, os.O_RDONLY)
            twin = os.dup(descriptor)
            os.close(descriptor)
            size = os.fstat(twin).st_size
            at = draw.randrange(size + 1)
            if size != len(right[path]) or os.pread(twin, 100, at) != right[path][at:at + 100]:
                wrong.append(path)
            os.close(twin)
    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    before = len(os.listdir("/proc/self/fd"))
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(wrong, len(os.listdir("/proc/self/fd")) - before)
    """
    assert finished(tree, [level], python(code, *files(tree))).stdout == b"[] 0\n"


def test_a_file_that_does_not_fit_is_skipped_and_the_next_is_placed(
    tree: Path, level: Path
) -> None:
    """large.bin comes first and has 3 MB; 100 kB are allowed."""
    line = 'cat "$1/large.bin" "$1/b.bin" "$1/c.bin" | wc -c; echo read; read go'
    with Conversation(arguments(tree, [f"{level}:100kB"], ["sh", "-c", line, "sh", tree])) as run:
        run.wait_for("read")
        wait_for_copies(level, ["b.bin", "c.bin"])
        run.tell("go")
        run.end()
    assert "large.bin" not in copies(level)


def test_a_file_that_does_not_fit_into_the_first_level_goes_to_the_next(
    tree: Path, tmp_path: Path
) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    line = 'cat "$1/large.bin" "$1/b.bin" | wc -c; echo read; read go'
    levels = [f"{small}:100kB", f"{large}:10MB"]
    with Conversation(arguments(tree, levels, ["sh", "-c", line, "sh", tree])) as run:
        run.wait_for("read")
        wait_for_copies(large, ["large.bin"])
        wait_for_copies(small, ["b.bin"])
        run.tell("go")
        run.end()
    assert copies(large).keys() == {"large.bin"}


WRITES = {
    "write": "f = open(path, 'r+b'); f.write(b'new'); f.close()",
    "append": "f = open(path, 'ab'); f.write(b'more'); f.close()",
    "truncate and write": "f = open(path, 'wb'); f.write(b'all new'); f.close()",
    "os.truncate": "os.truncate(path, 10)",
    "mmap": "f = open(path, 'r+b'); m = mmap.mmap(f.fileno(), 0); m[:3] = b'new'; m.close(); f.close()",
    "replace": "open(path + '.new', 'wb').write(b'all new'); os.replace(path + '.new', path)",
    "by another name": "os.link(path, path + '2'); f = open(path + '2', 'r+b'); f.write(b'new'); f.close()",
    "by a link": "os.symlink(path, path + '2'); f = open(path + '2', 'r+b'); f.write(b'new'); f.close()",
    "shell": "os.system(f'echo more >> {path}')",
    "cp": "os.system(f'cp /etc/hostname {path}')",
    "dd": "os.system(f'dd if=/dev/zero of={path} bs=5 count=1 conv=notrunc status=none')",
    "sed -i": "os.system(f'sed -i s/e/E/g {path}')",
    "move the directory": (
        "folder = os.path.dirname(path); os.rename(folder, folder + '2'); os.mkdir(folder); "
        "f = open(path, 'wb'); f.write(b'other'); f.close()"
    ),
    "rename and back": "os.rename(path, path + '.away'); open(path, 'wb').write(b'other')",
}


@pytest.mark.parametrize("how", WRITES)
def test_writes_are_not_lost(how: str, own: Path, level: Path) -> None:
    """They go to the source, and later reads see them, in this run and in later ones."""
    (own / "some").mkdir()
    path = own / "some" / "file.bin"
    path.write_bytes(b"old bytes, one after the other " * 100)
    fill(own, level)
    code = f"""
    import hashlib, mmap, os, subprocess, sys
    path = sys.argv[1]
    before = open(path, "rb").read()
    {WRITES[how]}
    after = open(path, "rb").read()
    assert after != before
    assert os.stat(path).st_size == len(after)
    assert subprocess.check_output(["cat", path]) == after
    print(hashlib.sha256(after).hexdigest())
    """
    output = finished(own, [level], python(code, path)).stdout
    digest = ["sha256sum", path]
    assert finished(own, [level], digest).stdout.split()[0] == output.strip()
    unset = os.popen(f"sha256sum {path}").read()
    assert unset.split()[0] == output.decode().strip()


def test_a_deleted_file_is_gone(own: Path, level: Path) -> None:
    fill(own, level)
    line = 'cat "$1" && rm "$1" && ! cat "$1" && ! test -e "$1" && ! stat "$1"'
    finished(own, [level], ["sh", "-c", line, "sh", own / "c.bin"])
    assert not (own / "c.bin").exists()
    finished(own, [level], ["cat", own / "c.bin"], status=1)


def test_writes_are_seen_through_descriptors_opened_before(own: Path, level: Path) -> None:
    """A file opened for reading before it had a copy stays the source's own."""
    code = """
    import sys
    reader = open(sys.argv[1], "rb", buffering=0)
    with open(sys.argv[1], "ab") as writer:
        writer.write(b"the end")
    print(reader.read()[-7:] == b"the end")
    """
    assert finished(own, [level], python(code, own / "b.bin")).stdout == b"True\n"


def test_only_files_without_a_copy_are_read_from_the_source(tree: Path, level: Path) -> None:
    """A copy was removed from outside."""
    fill(tree, level)
    copies(level)["b.bin"].unlink()
    with SourceWatch(tree) as watch:
        done = finished(tree, [level], ["cat", *files(tree)])
        assert watch.opened().keys() == {"b.bin"}
    assert done.stdout == b"".join(path.read_bytes() for path in files(tree))
