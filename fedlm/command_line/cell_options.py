"""Where the cells of a comparison or a grid run: options that their commands share."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count
from fedlm.simulations.clusters.job_array import JobArray, submit, write_job_array
from fedlm.simulations.comparisons.cell_execution import CellTask, LocalProcesses, await_release

_Cell = TypeVar("_Cell", bound=CellTask)
_TASKS = 100


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """Where cells run.

    On a cluster, data and results lie in a folder that all its machines see by the same path, the same versions are
    installed on all, and whatever ends, a cell goes on from its last checkpoint.
    """

    executor: Literal["local", "slurm"] = "local"
    """local: processes of this machine. slurm: nothing runs; the command writes OUT/slurm.sh, a job array for sbatch,
    which runs the cells when you submit it."""
    workers: Count | None = None
    """Cells that run at the same time, with slurm in each task. If not given: one per CPU core or accelerator, and 1
    with slurm."""
    cores: Count | None = None
    """CPU cores of each cell. Their number decides the last bits of its results. If not given: an equal part of the
    machine's cores, and 1 with slurm."""
    slurm_tasks: Count | None = None
    """Tasks of the job array, which share the cells. If not given: one for each cell, but at most 100."""
    slurm_options: tuple[str, ...] = ()
    """Options of sbatch without their dashes, written into the script: partition=gpu account=me time=4:00:00
    gres=gpu:1."""
    slurm_submit: bool = False
    """Give the script to sbatch too."""
    share: str | None = None
    """K/N: run only every N-th cell, beginning with the K-th, and write no report. Tasks of a job array do this."""

    def __post_init__(self) -> None:
        if self.share is not None:
            _parse_share(self.share)
            if self.executor != "local":
                raise ConfigurationError(
                    f"{setting('share')} is {self.share}, but {setting('executor')} is {self.executor}; a share runs "
                    "local"
                )
            return
        for name in ("slurm_tasks", "slurm_options", "slurm_submit"):
            if self.executor != "slurm" and getattr(self, name) != getattr(CellOptions, name):
                raise ConfigurationError(f"{setting(name)} does nothing with executor {self.executor}; leave it out")

    @property
    def is_apart(self) -> bool:
        """Whether this command is one of several that run the cells."""
        return self.executor == "slurm" or self.share is not None

    def cell_executor(self) -> LocalProcesses:
        """Make what executes the cells, where the executor is not slurm."""
        return LocalProcesses(self.workers, self.cores)

    def chosen(self, cells: Sequence[_Cell]) -> list[_Cell]:
        """Take the share of the cells that is to run, once nobody else runs them any more; all where there is none."""
        number, of = (1, 1) if self.share is None else _parse_share(self.share)
        mine = list(cells[number - 1 :: of])
        for cell in mine:
            await_release(cell)
        return mine

    def refuse_apart(self, setting: str) -> None:
        """Refuse commands of which each runs a part. Raises ConfigurationError."""
        if self.is_apart:
            raise ConfigurationError(f"with {setting} one command runs all; give --executor local, and no --share")

    def finish_share(self, cells: Sequence[CellTask], failures: Mapping[Any, str]) -> int:
        """Say what became of a share's cells. Returns the exit status."""
        for cell, why in failures.items():
            print(f"failed {cell.directory}: {why}")
        print(f"share {self.share}: {len(cells) - len(failures)} of {len(cells)} cells are finished")
        return 1 if failures else 0

    def write_script(self, command: str, argv: Sequence[str], out: Path, cells: int) -> int:
        """Write the job array of a command, and say, or do, what is next. Returns the exit status.

        Args:
          command: the words between `fedlm` and its options.
          argv: its options.
          out: folder of the results.
          cells: how many there are.
        """
        workers, cores = self.workers or 1, self.cores or 1
        here = ["--executor", "local", "--workers", str(workers), "--cores", str(cores)]
        words = [sys.executable, "-m", "fedlm", *command.split(), *argv, *here]
        tasks = min(_TASKS if self.slurm_tasks is None else self.slurm_tasks, cells)
        script = write_job_array(JobArray(words, tasks, workers * cores, self.slurm_options), out)
        print(f"job array: {script}, {cells} cells in {tasks} tasks; submitted again, it runs what is left")
        if self.slurm_submit:
            print(f"submitted: job {submit(script)}")
        else:
            print(f"submit it: sbatch {script}")
        print("when its tasks have ended: the same command with --executor local gathers the results")
        return 0


def _parse_share(share: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", share)
    number, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= of:
        raise ConfigurationError(
            f"{setting('share')} is {share!r}, but must be K/N with K between 1 and N, such as 1/10"
        )
    return number, of
