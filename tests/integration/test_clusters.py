"""A grid and a comparison as users run them: here, shared out for a job array, and on a Ray cluster."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.support.ray_cluster import two_nodes

GRID = (
    "laws run --models transformer_1x32 --learning-rates 0.01 --noise-batch-ratios 0 0.001 --batch-sizes 4 --steps 4 "
    "--seeds 0 1 --length 8 --warmup-steps 1 --block-steps 2 --microbatch-size 4"
).split()
COMPARISON = (
    "compare --models cifg_tiny --rounds 1 --cohort-size 4 --length 8 --evaluate-every 1 --client-learning-rates 0.5 "
    "--seeds 0 1 --heldout-examples 50"
).split()


def typed(folder, *words, **more):
    command = [sys.executable, "-m", "fedlm", *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=os.environ | more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(small_store, tmp_path_factory):
    """A folder with data, and what local processes make of it, of one core each."""
    folder = tmp_path_factory.mktemp("clusters")
    (folder / "data").symlink_to(small_store)
    typed(folder, *GRID, "--data", "data", "--out", "local", "--cores", 1)
    return folder


@pytest.mark.thorough
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed; pip install -c constraints.txt -e '.[ray]'"
)
def test_a_ray_cluster_measures_a_grid_to_the_same_bits_and_says_nothing_of_its_own(place):
    with two_nodes() as (address, _):
        words = [*GRID, "--data", "data", "--out", "ray", "--executor", "ray", "--ray-address", address]
        said = typed(place, *words, RAY_ADDRESS="nonsense")
    assert said.startswith("NOT PRIVATE")
    assert len(said.splitlines()) == 2
    measured = [(place / out / "measurements.parquet").read_bytes() for out in ("local", "ray")]
    assert measured[0] == measured[1]


@pytest.mark.long
def test_a_comparison_is_shared_out_and_gathered(small_store, tmp_path, fedlm_here, cells_here):
    words = [*COMPARISON, "--data", small_store, "--out", tmp_path]
    written = fedlm_here(*words, "--executor", "slurm", "--workers", 2, "--cores", 3)
    assert written.stdout.startswith(f"job array: {tmp_path}/slurm.sh, 2 cells in 2 tasks")
    script = (tmp_path / "slurm.sh").read_text()
    assert "#SBATCH --cpus-per-task=6\n" in script
    assert '--executor local --workers 2 --cores 3 --share "$SLURM_ARRAY_TASK_ID/2" &' in script
    settings = (tmp_path / "comparison.json").stat().st_mtime_ns
    here = ("--executor", "local", "--workers", 2, "--cores", 3)
    second = fedlm_here(*words, "--executor", "slurm", *here, "--share", "2/2")
    assert (second.returncode, second.stdout) == (0, "share 2/2: 1 of 1 cells are finished\n")
    assert [path.parent.name for path in tmp_path.glob("cells/*/*/*/summary.json")] == ["seed-1"]
    assert not (tmp_path / "report.html").exists()
    assert (tmp_path / "comparison.json").stat().st_mtime_ns == settings
    assert fedlm_here(*words).returncode == 0
    assert (tmp_path / "report.html").exists()
