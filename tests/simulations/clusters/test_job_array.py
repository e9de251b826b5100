"""Scripts of SLURM job arrays, run by bash as a task runs them."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.simulations.clusters.job_array import JobArray, submit, write_job_array

WAITING = """
import signal, time

def end(*_):
    print("ended")
    raise SystemExit(1)

signal.signal(signal.SIGTERM, end)
open("there", "w").close()
time.sleep(60)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder whose name has a blank, and the programs of a cluster, which write down how they are called."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("scontrol", "sbatch"):
        (programs / name).write_text(f'#!/bin/bash\necho "$@" > "{tmp_path}/{name}"\necho 17\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    folder = tmp_path / "my results"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def task(script, number, **more):
    environment = os.environ | {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": str(number)} | more
    return subprocess.Popen(["bash", script], env=environment, cwd="/", stdout=subprocess.PIPE, text=True)


def waiting_task(place, **more):
    """A task whose command is there, and ends by SIGTERM alone."""
    process = task(write_job_array(JobArray([sys.executable, "-uc", WAITING], 4), place / "out"), 3, **more)
    while not (place / "there").exists():
        time.sleep(0.01)
    return process


def test_each_task_runs_the_command_with_its_share_where_the_script_was_written(place):
    words = [sys.executable, "-c", "import os, sys; print(os.getcwd(), sys.argv[1:]); sys.exit(3)", "a b", "$HOME"]
    first = task(write_job_array(JobArray(words, 4), place / "out"), 2)
    assert first.communicate()[0] == f"{place} ['a b', '$HOME', '--share', '2/4']\n"
    assert first.returncode == 3


def test_options_are_directives_and_win_over_our_own(place):
    array = JobArray(["true"], 7, 2, ("partition=gpu", "cpus-per-task=8", "comment=my grid", "exclusive"))
    script = write_job_array(array, place / "out")
    first = script.read_text()
    assert write_job_array(array, place / "out").read_text() == first
    lines = [line.removeprefix("#SBATCH --") for line in first.splitlines() if line.startswith("#SBATCH")]
    logs = f'output="{place}/out/slurm_logs/%A_%a.log"'
    assert {"array=1-7", "cpus-per-task=8", "partition=gpu", 'comment="my grid"', "exclusive", "requeue", logs} <= {
        *lines
    }
    assert len({line.partition("=")[0] for line in lines}) == len(lines)
    assert (place / "out" / "slurm_logs").is_dir()
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("sent", "queued_before", "status", "queued_again"),
    [(signal.SIGUSR1, 0, 0, True), (signal.SIGUSR1, 100, 1, False), (signal.SIGTERM, 0, 143, False)],
)
def test_a_task_ends_its_cells_and_is_queued_again_before_its_time_limit(
    place, sent, queued_before, status, queued_again
):
    process = waiting_task(place, SLURM_RESTART_COUNT=str(queued_before))
    process.send_signal(sent)
    assert process.communicate(timeout=120)[0].startswith("ended")
    assert process.returncode == status
    called = place.parent / "scontrol"
    assert (called.read_text() if called.exists() else None) == ("requeue 5_3\n" if queued_again else None)


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        (0, (), "slurm_tasks is 0, but must lie between 1 and 1000"),
        (1001, (), "slurm_tasks is 1001"),
        (1, ("--partition=gpu",), "without its dashes, such as partition=gpu"),
        (1, ("time=1:00\nrm -r /",), "each must be NAME=VALUE or NAME"),
        (1, ('comment="',), "each must be NAME=VALUE or NAME"),
        (1, ("array=1-5",), "which slurm_tasks sets"),
    ],
)
def test_what_cannot_be_written_is_refused(tasks, options, message):
    with pytest.raises(ConfigurationError, match=message):
        JobArray(["true"], tasks, 1, options)


def test_a_script_is_submitted_where_there_is_slurm(place, monkeypatch):
    script = write_job_array(JobArray(["true"], 4), place / "out")
    assert submit(script) == "17"
    assert (place.parent / "sbatch").read_text() == f"--parsable {script}\n"
    (place.parent / "programs" / "sbatch").write_text("#!/bin/bash\necho 'no such partition' >&2\nexit 1\n")
    with pytest.raises(ConfigurationError, match=r"sbatch refuses .*slurm.sh: no such partition"):
        submit(script)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"there is no sbatch here; .* give: sbatch .*slurm.sh"):
        submit(script)
