"""A comparison as users run it, shared out for a job array."""

import pytest

from tests.support.plain_runs import MODEL

COMPARISON = (
    f"compare --models {MODEL} --rounds 1 --cohort-size 4 --length 8 --client-learning-rates 0.5 --seeds 0 1 "
    "--heldout-examples 20 --workers 2 --cores 3"
).split()


@pytest.mark.long
@pytest.mark.usefixtures("plain_cohorts", "cells_here")
def test_a_job_array_has_its_cores_and_a_share_runs_its_cells_alone_without_a_report(small_store, tmp_path, fedlm_here):
    words = [*COMPARISON, "--data", small_store, "--out", tmp_path]
    written = fedlm_here(*words, "--executor", "slurm")
    assert written.stdout.startswith(f"job array: {tmp_path}/slurm.sh, 2 cells in 2 tasks")
    script = (tmp_path / "slurm.sh").read_text()
    assert "#SBATCH --cpus-per-task=6\n" in script
    assert '--executor local --workers 2 --cores 3 --share "$SLURM_ARRAY_TASK_ID/2" &' in script
    shared = fedlm_here(*words, "--share", "2/2")
    assert (shared.returncode, shared.stdout) == (0, "share 2/2: 1 of 1 cells are finished\n")
    assert [path.parent.name for path in tmp_path.rglob("summary.json")] == ["seed-1"]
    assert not (tmp_path / "report.html").exists()
