"""Programs in the shape of well-known ones, with torch's loader and with ours: what was changed,
and what comes out.

`migrated/` has them in pairs: `NAME_torch.py`, and the same moved to belady.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from starting import finished, started
from transforms.pictures import encoded, make_photos

PROGRAMS = Path(__file__).parent / "migrated"
NAMES = sorted(file.stem.removesuffix("_torch") for file in PROGRAMS.glob("*_torch.py"))
KINDS = ("torch", "belady")


def make_pictures(root: Path, each: int) -> Path:
    """Small images that every decoder makes the same of: a folder a class, and one image more in
    the last.
    """
    seed = 0
    for name in ("cat", "dog", "owl"):
        (root / name).mkdir(parents=True)
        for number in range(each + (name == "owl")):
            seed += 1
            (root / name / f"{number:03}.png").write_bytes(encoded(16, 16, seed, kind="PNG"))
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of which neither two nor three processes have equally many."""
    root = tmp_path_factory.mktemp("pictures")
    make_pictures(root / "train", each=12)
    make_pictures(root / "val", each=8)
    return root


def needs(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def program(name: str, kind: str) -> Path:
    return PROGRAMS / f"{name}_{kind}.py"


def run(name: str, kind: str, *arguments: Any, ranks: int = 0, **more: Any) -> list[str]:
    """Returns the lines of a program, in order, or by rank under torchrun."""
    starter: list[Any] = [sys.executable]
    if ranks:
        starter += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    output = finished([*starter, program(name, kind), *arguments], **more).splitlines()
    return sorted(line for line in output if line.startswith("rank ")) if ranks else output


NUMBER = re.compile(r"-?\d+\.\d+")


def assert_alike(ours: list[str], theirs: list[str], *, within: float = 1e-4) -> None:
    """The same lines, in which numbers with a point are equal but for rounding."""
    assert [NUMBER.sub("#", line) for line in ours] == [NUMBER.sub("#", line) for line in theirs]
    numbers = (
        [float(it) for line in lines for it in NUMBER.findall(line)] for lines in (ours, theirs)
    )
    assert next(numbers) == pytest.approx(next(numbers), abs=within)


@pytest.mark.parametrize("name", NAMES)
def test_at_most_five_lines_are_changed(name: str) -> None:
    before, after = (program(name, kind).read_text().splitlines() for kind in KINDS)
    changes = [
        line for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:].strip()
    ]
    removed = sum(line[0] == "-" for line in changes)
    assert 0 < max(removed, len(changes) - removed) <= 5, "\n".join(changes)


def test_torchs_imagenet_example_under_torchrun(tmp_path: Path) -> None:
    """Labels of all batches are the same, and what is not drawn at random is so within the
    decoders' rounding.
    """
    needs("torch", "torchvision")
    make_photos(tmp_path / "train", each=9)
    make_photos(tmp_path / "val", each=7)
    theirs, ours = (run("imagenet", kind, tmp_path, ranks=2) for kind in KINDS)
    assert sum(" val " in line for line in theirs) == 2 * 3, "with what ranks could not share"
    assert_alike(ours, theirs, within=0.05)


def test_a_factory_like_timms_works_with_belady(tmp_path: Path) -> None:
    needs("torch", "torchvision")
    make_photos(tmp_path / "data", each=9)
    for kind in KINDS:
        (tmp_path / kind).mkdir()
    lines = [run("timm", kind, tmp_path / "data", tmp_path / kind) for kind in KINDS]
    epochs = [[line for line in output if re.match(r"\d \(", line)] for output in lines]
    assert epochs[0] == epochs[1]
    assert len(epochs[0]) == 6 and all(line.endswith("True") for line in epochs[0]), epochs
    for kind in KINDS:
        assert sorted(file.name for file in (tmp_path / kind).iterdir()) == ["worker-0", "worker-1"]


def test_lightning(pictures: Path, tmp_path: Path) -> None:
    needs("lightning", "torchvision")
    lines = [run("lightning", kind, pictures, tmp_path) for kind in KINDS]
    steps = [[line for line in output if re.match("train|val", line)] for output in lines]
    assert_alike(steps[1], steps[0])
    assert sum(line.startswith("train") for line in steps[0]) == 3 * (37 // 8)


@pytest.mark.parametrize("ranks", [2, 3])
def test_accelerate_counts_every_sample_once_and_resumes_within_an_epoch(
    pictures: Path, tmp_path: Path, ranks: int
) -> None:
    needs("accelerate", "torchvision")

    def rank_lines(kind: str, how: str) -> list[str]:
        return run("accelerate", kind, pictures, tmp_path / kind, how, ranks=ranks)

    lines = {kind: rank_lines(kind, "whole") for kind in KINDS}
    evaluated = {kind: [line for line in lines[kind] if " eval " in line] for kind in KINDS}
    assert_alike(evaluated["belady"], evaluated["torch"])
    assert len(evaluated["belady"]) == 2 * ranks
    assert all(" 25 " in line for line in evaluated["belady"])
    trained = [line for line in lines["belady"] if re.search("train 1 [1-9]", line)]
    assert trained
    rest = [line for line in rank_lines("belady", "resume") if " train " in line]
    assert_alike(rest, trained)


def test_the_trainer_of_hugging_face_is_killed_and_goes_on(pictures: Path, tmp_path: Path) -> None:
    needs("transformers", "torchvision")
    lines = [
        run("trainer", kind, pictures, tmp_path / f"whole-{kind}", -1, "begin") for kind in KINDS
    ]
    whole, expected = (
        [line for line in output if re.match("step|eval", line)] for output in reversed(lines)
    )
    assert_alike(whole, expected)
    seen: list[str] = []
    for killed_after in (8, 12, -1):
        how = "begin" if not seen else "resume"
        command = [sys.executable, program("trainer", "belady"), pictures, tmp_path / "killed"]
        process = started([*command, killed_after, how])
        output, _ = process.communicate(timeout=240)
        assert process.returncode == (0 if killed_after < 0 else -signal.SIGKILL), output
        steps = [line for line in output.splitlines() if re.match("step|eval", line)]
        # It goes on from the last checkpoint, of which there is one after every third step.
        first = int(steps[0].split()[1].rstrip(":"))
        assert first % 3 == 0 and first == len(seen) // 3 * 3
        seen = seen[:first] + steps
    assert_alike(seen, whole)
