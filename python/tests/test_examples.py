"""Every example runs to its end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
#: What examples share.
NOT_EXAMPLES = ("shapes", "pictures")
NEEDS = {
    "torch_single": "torch",
    "torchrun_ddp": "torch",
    "mpi": "mpi4py",
    "lightning_fit": "lightning",
    "accelerate_loop": "accelerate",
    "lightning_transforms": "lightning",
    "accelerate_transforms": "accelerate",
    "jax_train": "jax",
    "tensorflow_train": "tensorflow",
}


@pytest.mark.parametrize(
    "name", sorted(file.stem for file in EXAMPLES.glob("*.py") if file.stem not in NOT_EXAMPLES)
)
def test_example(name: str, tmp_path: Path) -> None:
    needed = NEEDS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    if name == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("no MPI")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_the_slurm_script_is_one() -> None:
    script = EXAMPLES / "slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    options = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH ")]
    assert len(options) >= 4
    assert script.read_text().index(options[-1]) < script.read_text().index("set -euo")


def test_the_kubernetes_manifest_says_what_belady_reads() -> None:
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    template = job["spec"]["template"]["spec"]
    assert template["subdomain"] == service["metadata"]["name"]
    (container,) = template["containers"]
    variables = {variable["name"]: variable for variable in container["env"]}
    assert int(variables["BELADY_RANKS"]["value"]) == job["spec"]["completions"]
    host, _, port = variables["BELADY_MEET"]["value"].partition(":")
    assert host == f"{job['metadata']['name']}-0.{template['subdomain']}"
    assert int(port) == container["ports"][0]["containerPort"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in template["volumes"]}
