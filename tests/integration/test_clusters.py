"""A comparison as users run it, shared out for a job array."""

import pytest

COMPARISON = (
    "compare --models cifg_tiny --rounds 1 --cohort-size 4 --length 8 --evaluate-every 1 --client-learning-rates 0.5 "
    "--seeds 0 1 --heldout-examples 50"
).split()


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
