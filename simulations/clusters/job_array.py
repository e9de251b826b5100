"""A SLURM job array whose tasks each run a share of a command's cells: a script that a person reads and submits."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.errors import ConfigurationError, setting

SCRIPT_FILE, _LOGS = "slurm.sh", "slurm_logs"
MOST_TASKS = 1000
"""SLURM's own limit where a cluster sets no other: MaxArraySize is 1001, and counts from 0."""
_OPTION = re.compile(r'([a-z][a-z-]*)(=[^\n"]+)?')
_SECONDS_BEFORE_LIMIT, _MOST_RESTARTS = 120, 100

_BODY = """
cd {folder} || exit 1

# Ends the cells that run now, which go on from their last checkpoints.
end_cells() {{
  kill -TERM "$cells"
  wait "$cells"
}}
# SLURM sends USR1 {seconds} seconds before the time limit: the task is queued again, and goes on where it was.
queue_again() {{
  end_cells
  if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}" && exit 0
  fi
  exit 1
}}
trap queue_again USR1
trap 'end_cells; exit 143' TERM

{command} --share "$SLURM_ARRAY_TASK_ID/{tasks}" &
cells=$!
wait "$cells"
"""


@dataclass(frozen=True)
class JobArray:
    """The tasks of a SLURM job array.

    Attributes:
      command: words of the command that each task runs, with `--share K/TASKS` behind them.
      tasks: how many there are.
      cores: CPU cores of a task.
      options: of sbatch, `NAME=VALUE` or `NAME` without dashes; they win over those that are set here.
    """

    command: Sequence[str]
    tasks: int
    cores: int = 1
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.tasks <= MOST_TASKS:
            raise ConfigurationError(
                f"{setting('slurm_tasks')} is {self.tasks}, but must lie between 1 and {MOST_TASKS}"
            )
        for option in self.options:
            if not _OPTION.fullmatch(option):
                raise ConfigurationError(
                    f"{setting('slurm_options')} has {option!r}, but each must be NAME=VALUE or NAME, a long option of "
                    "sbatch without its dashes, such as partition=gpu"
                )
            if option.partition("=")[0] == "array":
                raise ConfigurationError(
                    f"{setting('slurm_options')} has array, which {setting('slurm_tasks')} sets; give "
                    f"{setting('slurm_tasks')}"
                )

    def script(self, folder: Path, out: Path) -> str:
        """Write the script.

        Args:
          folder: where the command is run, for its relative paths.
          out: where the tasks' logs go.
        """
        options = {
            "job-name": "=fedlm",
            "array": f"=1-{self.tasks}",
            "cpus-per-task": f"={self.cores}",
            "output": f"={out.absolute() / _LOGS}/%A_%a.log",
            "open-mode": "=append",
            "requeue": "",
            "signal": f"=B:USR1@{_SECONDS_BEFORE_LIMIT}",
        }
        for option in self.options:
            name, equals, value = option.partition("=")
            options[name] = equals + value
        directives = [f"#SBATCH --{name}{_quoted(value)}" for name, value in options.items()]
        body = _BODY.format(
            folder=shlex.quote(str(folder.absolute())),
            command=shlex.join(self.command),
            tasks=self.tasks,
            seconds=_SECONDS_BEFORE_LIMIT,
            restarts=_MOST_RESTARTS,
        )
        return "\n".join(["#!/bin/bash", *directives]) + "\n" + body


def write_job_array(array: JobArray, out: Path) -> Path:
    """Write the script of a job array into the folder of its results, and make the folder of its logs, without which
    SLURM would end the tasks. Returns the script's path."""
    make_folder(out / _LOGS)
    path = out / SCRIPT_FILE
    write_atomically(path, array.script(Path.cwd(), out))
    return path


def submit(script: Path) -> str:
    """Give a script to SLURM. Returns the number of the job. Raises ConfigurationError where there is no SLURM, or it
    refuses."""
    if shutil.which("sbatch") is None:
        raise ConfigurationError(f"there is no sbatch here; on a machine of the cluster, give: sbatch {script}")
    answer = subprocess.run(["sbatch", "--parsable", script], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise ConfigurationError(f"sbatch refuses {script}: {answer.stderr.strip()}")
    return answer.stdout.strip()


def _quoted(value: str) -> str:
    """Quote what follows an option's name where a blank would end it."""
    return f'="{value[1:]}"' if re.search(r"\s", value) else value
