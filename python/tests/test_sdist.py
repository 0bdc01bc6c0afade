"""What `pip install` builds from: the source distribution."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def backend(folder, function, out):
    """Calls a function of the build backend in `folder`, as pip does."""
    maturin = pytest.importorskip("maturin")
    programs = Path(maturin.__file__).parents[4] / "bin"
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "scripts"),
    }
    code = f"import wheel_backend; wheel_backend.{function}({str(out)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Returns the folder of an unpacked source distribution."""
    for program in ("git", "cargo"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    out = tmp_path_factory.mktemp("sdist")
    backend(ROOT, "build_sdist", out)
    (archive,) = out.glob("belady-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(out, filter="data")
    return out / archive.name.removesuffix(".tar.gz")


def test_a_source_distribution_has_every_file_of_the_repository(unpacked):
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    tracked = {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    packed = {str(file.relative_to(unpacked)) for file in unpacked.rglob("*") if file.is_file()}
    assert packed - {"PKG-INFO"} == tracked


def test_cargo_finds_the_program_and_the_module_in_a_source_distribution(unpacked):
    described = subprocess.run(
        ["cargo", "metadata", "--offline", "--locked", "--no-deps", "--format-version", "1"],
        cwd=unpacked,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    targets = {
        (package["name"], target["name"], kind)
        for package in json.loads(described)["packages"]
        for target in package["targets"]
        for kind in target["kind"]
    }
    assert ("belady", "belady", "bin") in targets
    assert ("belady-python", "_native", "cdylib") in targets
    # The build script of `belady run` builds it.
    assert ("belady-shim", "belady_shim", "cdylib") in targets


def test_the_package_is_described_before_anything_is_built(unpacked, tmp_path):
    backend(unpacked, "prepare_metadata_for_build_wheel", tmp_path)
    (described,) = tmp_path.glob("belady-*.dist-info")
    assert "Name: belady" in (described / "METADATA").read_text()
