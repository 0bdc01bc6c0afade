"""Processes of all kinds in one job, and those that cannot be helped: they run as if nothing were
there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from transparent.inside import files
from transparent.launching import (
    BELADY,
    Conversation,
    arguments,
    copies,
    environment,
    fill,
    finished,
    report,
)
from transparent.source_watch import SourceWatch

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
#: The id of the unprivileged user that every system has.
OTHER_USER = 65534

needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="not root, which alone can become another user"
)


def contents(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in files(root))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("subprocess.run(command, close_fds=True)", id="close_fds"),
        pytest.param("subprocess.run(command, preexec_fn=os.setsid)", id="fork and exec"),
        pytest.param(
            "os.waitpid(os.posix_spawnp('cat', command, os.environ), 0)", id="posix_spawn"
        ),
        pytest.param("os.system(shlex.join(command))", id="system"),
        pytest.param(
            "sys.stdout.buffer.write(os.popen(shlex.join(command)).buffer.read())", id="popen"
        ),
        pytest.param("os.execvp('cat', command)", id="exec"),
    ],
)
def test_children_are_served_however_they_are_started(how: str, tree: Path, level: Path) -> None:
    fill(tree, level)
    code = f"import os, shlex, subprocess, sys; command = ['cat', *sys.argv[1:]]; {how}"
    with SourceWatch(tree) as watch:
        done = finished(tree, [level], [sys.executable, "-c", code, *files(tree)])
        assert not watch.opened()
    assert done.stdout == contents(tree)
    assert done.stderr == b""


def test_the_installed_command_is_the_same(tree: Path, level: Path) -> None:
    fill(tree, level)
    command = Path(sys.executable).with_name("belady")
    run = [command, *arguments(tree, [level], ["cat", *files(tree)])[len(BELADY) :]]
    with SourceWatch(tree) as watch:
        done = subprocess.run(run, capture_output=True, env=environment(), check=True)
        assert not watch.opened()
    assert (done.stdout, done.stderr) == (contents(tree), b"")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes_are_served(method: str, tree: Path, level: Path) -> None:
    fill(tree, level)
    code = """
    import multiprocessing, pathlib, sys
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        for part in pool.map(pathlib.Path.read_bytes, map(pathlib.Path, sys.argv[2:])):
            sys.stdout.buffer.write(part)
    """
    program = [sys.executable, "-c", textwrap.dedent(code), method, *files(tree)]
    with SourceWatch(tree) as watch:
        done = finished(tree, [level], program)
        assert not watch.opened()
    assert done.stdout == contents(tree)


def test_works_after_fork(tree: Path, level: Path) -> None:
    fill(tree, level)
    code = """
    import os, pathlib, sys
    for name in sys.argv[1:]:
        if os.fork() == 0:
            # One more, whose parent is gone.
            if os.fork() == 0:
                sys.stdout.buffer.write(pathlib.Path(name).read_bytes())
                sys.stdout.flush()
                os._exit(0)
            os._exit(os.wait()[1])
        assert os.wait()[1] == 0
    """
    with SourceWatch(tree) as watch:
        program = [sys.executable, "-c", textwrap.dedent(code), *files(tree)]
        done = finished(tree, [level], program)
        assert not watch.opened()
    assert done.stdout == contents(tree)


def test_a_process_that_outlives_the_run_still_reads(tree: Path, tmp_path: Path) -> None:
    """Its copies in memory are gone by then."""
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "out")
    line = 'cat "$1" > /dev/null; (exec > /dev/null 2>&1; read go < "$2"; cat "$1" > "$3" 2>&1) & exit 0'
    program = ["sh", "-c", line, "sh", tree / "large.bin", tmp_path / "go", tmp_path / "out"]
    finished(tree, ["ram:16MiB"], program)
    (tmp_path / "go").write_text("go\n")
    # It ends when that process does.
    assert (tmp_path / "out").read_bytes() == (tree / "large.bin").read_bytes()


def test_a_static_program_runs_unchanged(tree: Path, level: Path, tmp_path: Path) -> None:
    program = tmp_path / "static-cat"
    code = """
    #include <fcntl.h>
    #include <unistd.h>
    int main(int count, char **names) {
        char room[65536];
        for (int at = 1; at < count; at++) {
            int file = open(names[at], O_RDONLY);
            for (ssize_t got; (got = read(file, room, sizeof room)) > 0;)
                if (write(1, room, got) != got) return 1;
            close(file);
        }
    }
    """
    command = ["cc", "-static", "-x", "c", "-", "-o", str(program)]
    try:
        subprocess.run(command, input=code.encode(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("cc -static does not work here")
    fill(tree, level)
    with SourceWatch(tree) as watch:
        done = finished(tree, [level], [program, *files(tree)])
        assert watch.opened(), "no process opened it"
    assert (done.stdout, done.stderr) == (contents(tree), b"")


def test_a_program_without_the_environment_runs_unchanged(tree: Path, level: Path) -> None:
    fill(tree, level)
    with SourceWatch(tree) as watch:
        done = finished(tree, [level], ["env", "-i", shutil.which("cat") or "cat", *files(tree)])
        assert watch.opened()
    assert (done.stdout, done.stderr) == (contents(tree), b"")


@needs_root
def test_a_setuid_program_runs_unchanged(own: Path, level: Path, tmp_path: Path) -> None:
    fill(own, level)
    program = readable_by_all(tmp_path) / "cat"
    shutil.copy(shutil.which("cat") or "cat", program)
    program.chmod(0o4755)
    command = ["setpriv", f"--reuid={OTHER_USER}", "--clear-groups", program, *files(own)]
    with SourceWatch(own) as watch:
        done = finished(own, [level], command)
        assert watch.opened()
    assert (done.stdout, done.stderr) == (contents(own), b"")


@needs_root
def test_another_user_reads_only_files_with_permission(
    own: Path, level: Path, tmp_path: Path
) -> None:
    """That user cannot read the launcher's files; the program's output does not mention it."""
    readable_by_all(tmp_path)
    fill(own, level)
    (own / "a.bin").chmod(0o644)
    (own / "lines.txt").chmod(0o600)
    as_other_user = ["setpriv", f"--reuid={OTHER_USER}", "--clear-groups", "cat"]
    done = finished(own, [level], [*as_other_user, own / "a.bin"])
    assert (done.stdout, done.stderr) == ((own / "a.bin").read_bytes(), b"")
    done = finished(own, [level], [*as_other_user, own / "lines.txt"], status=1)
    assert done.stdout == b""
    assert b"Permission denied" in done.stderr


def readable_by_all(directory: Path) -> Path:
    for path in (directory, *directory.parents):
        if path.owner() == "root" and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o55)
    return directory


@needs_mpirun
def test_mpirun_inside_of_a_run(tree: Path, level: Path) -> None:
    fill(tree, level)
    with SourceWatch(tree) as watch:
        done = finished(tree, [level], [*MPIRUN, "sha256sum", *files(tree)])
        assert not watch.opened()
    line = hashlib.sha256((tree / "large.bin").read_bytes()).hexdigest() + f"  {tree / 'large.bin'}"
    assert done.stdout.decode().splitlines().count(line) == 2


@needs_mpirun
def test_runs_inside_of_mpirun_share_one_copy_of_each_file_and_one_quota(
    tmp_path: Path, level: Path
) -> None:
    """Forty files, of which ten fit."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(40):
        (data / f"{number:02}.bin").write_bytes(bytes([number]) * 100_000)
    reading = ["sh", "-c", 'cat "$1"/* > /dev/null; cat "$1"/* | md5sum', "sh", data]
    program = arguments(data, [f"{level}:1048576B"], reading)
    done = subprocess.run([*MPIRUN, *program], capture_output=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    line = hashlib.md5(contents(data)).hexdigest().encode()
    assert done.stdout.count(line) == 2
    held = copies(level)
    assert sum(path.stat().st_size for path in held.values()) <= 1 << 20
    assert all(path.read_bytes() == (data / name).read_bytes() for name, path in held.items())


def test_two_runs_at_the_same_time_share_their_copies(
    tree: Path, level: Path, tmp_path: Path
) -> None:
    """What the first has copied the second uses, though it was there when nothing was copied."""
    script = [sys.executable, "-m", "transparent.inside", "cat", tree]
    first = arguments(
        tree, [level], [*script, tmp_path / "one"], "--report-json", tmp_path / "one.json"
    )
    second = arguments(
        tree, [level], [*script, tmp_path / "two"], "--report-json", tmp_path / "two.json"
    )
    with Conversation(first) as one, Conversation(second) as two:
        for run in (one, two):
            run.wait_for("epoch")
        for run in (one, two):
            run.wait_until_served(files(tree), level)
        with SourceWatch(tree) as watch:
            for run in (one, two):
                run.tell("again")
                run.wait_for("epoch")
            assert not watch.opened()
        for run in (one, two):
            run.end()
    copied = [report(tmp_path / f"{name}.json")["copied"]["files"] for name in ("one", "two")]
    # A link is another name of a copy.
    assert sum(copied) == len({path.stat().st_ino for path in copies(level).values()})
