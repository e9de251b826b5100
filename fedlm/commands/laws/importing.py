"""`fedlm laws import`: take in measurements that were made elsewhere."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count
from fedlm.simulations.laws.measuring.imported_runs import import_runs
from fedlm.simulations.laws.measuring.imported_tables import import_measurements
from fedlm.simulations.laws.measuring.measurements import write_measurements


@dataclass(frozen=True, kw_only=True)
class LawsImportCommand:
    """Import measurements that were made elsewhere: a table, or federated runs.

    `fedlm laws fit` takes them like those of `fedlm laws run`.

    A table has comma-separated values and a header. It needs the columns of McKenna et al. 2025's published results,
    Model, Learning Rate, Iterations, Noise Batch Ratio and Cross Entropy; or ours, model, learning_rate, step,
    noise_batch_ratio and loss. It may have other columns of ours, such as seed and loss_error; all others are ignored.
    The sizes of the published models, BertTiny to BertMega, are known, and so are those of `fedlm models`. Other models
    need the columns parameters and non_embedding_parameters.

    Federated runs are folders that `fedlm simulate` or `fedlm compare` made. Those that have finished count. A round is
    a step, its cohort a batch, and the noise-batch ratio is the run's noise multiplier over the cohort size, or 0
    without privacy. Runs may differ in model, amount of noise, one of the two learning rates, cohort size, rounds and
    seed. `fedlm laws plan --federated` plans by laws of them. Their losses were measured on clients without noise, so
    no epsilon covers the measurements or laws of them.
    """

    source: tyro.conf.Positional[tuple[Path, ...]]
    """A table, which is a file of comma-separated values; or folders of runs, or of several runs."""
    out: Path
    """The Parquet file to write."""
    batch_size: Count = 1024
    """Examples of a step, if a table has no column batch_size."""
    length: Count = 512
    """Tokens of an example, if a table has no column length."""
    steps: Count | None = None
    """Steps of a run's schedule, if a table has no column steps. If not given, the last step that it measured."""

    def __post_init__(self) -> None:
        of_runs = bool(self.source) and all(path.is_dir() for path in self.source)
        if not of_runs and len(self.source) != 1:
            raise ConfigurationError(
                f"{setting('source')} is {' '.join(map(str, self.source)) or 'not given'}, but must be one table, or "
                "folders of runs"
            )
        for name in ("batch_size", "length", "steps"):
            if of_runs and getattr(self, name) != getattr(type(self), name):
                raise ConfigurationError(
                    f"{setting(name)} does nothing with federated runs, which record it; leave it out"
                )


def main(argv: list[str]) -> int:
    """Run `fedlm laws import`."""
    command = read_options(LawsImportCommand, argv, "fedlm laws import")
    console, task = Console(), None
    if command.source[0].is_dir():
        imported = import_runs(command.source)
        found, task = imported.measurements, imported.task
        for directory, why in imported.left_out.items():
            console.print(f"left out, {directory}: {why}", soft_wrap=True, highlight=False, markup=False)
    else:
        found = import_measurements(command.source[0], command.batch_size, command.length, command.steps)
    make_folder(command.out.parent)
    write_measurements(found, command.out, task)
    models, rates, ratios = (len(set(column)) for column in (found.model, found.learning_rate, found.noise_batch_ratio))
    console.print(
        f"{len(found):,} measurements of {models} models, {rates} learning rates and {ratios} noise-batch ratios: "
        f"{command.out}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    return 0


COMMAND = Command(LawsImportCommand, main)
