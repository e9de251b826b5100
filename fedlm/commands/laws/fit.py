"""`fedlm laws fit`: fit laws to what a grid of trainings measured."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Column, Table

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.command_line.progress import EvaluationProgress
from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.simulations.laws.fit import fit_laws, source_of, task_of
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.laws_file import Laws, write_laws
from fedlm.simulations.laws.measuring.imported_runs import FEDERATED
from fedlm.simulations.laws.measuring.measurements import measurements_file, read_measurements
from fedlm.simulations.laws.planning.central_planner import FLOPS
from fedlm.simulations.laws.surface.fitted_losses import SurfaceSettings


@dataclass(frozen=True, kw_only=True)
class FitCommand:
    """Fit a surface of losses, by model size, steps and noise, and parametric laws to measurements.

    Each has intervals, and errors on measurements that were left out.

    `fedlm laws plan` plans by the surface (McKenna et al. 2025, "Scaling laws for differentially private language
    models"). Losses are smoothed so that they fall with steps and rise with noise, and the best learning rate is taken.
    The loss is extrapolated beyond the longest training and interpolated between trainings. An unfinished grid is
    fitted as far as it goes.
    """

    measurements: tyro.conf.Positional[Path]
    """File that `fedlm laws run` or `fedlm laws import` made, or the folder of its results."""
    surface: SurfaceSettings
    out: Path
    """File of laws to write, JSON."""
    forms: tuple[str, ...] = tuple(FORMS)
    """Parametric laws to fit. The output names those for which there are too few measurements. Without names, none is
    fitted."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.forms if name not in FORMS]:
            raise ConfigurationError(f"there is no form {', '.join(unknown)}; choose from {', '.join(FORMS)}")


def main(argv: list[str]) -> int:
    """Run `fedlm laws fit`."""
    command = read_options(FitCommand, argv, "fedlm laws fit")
    path = measurements_file(command.measurements)
    measurements = read_measurements(path)
    task = task_of(path, measurements)
    make_folder(command.out.parent)
    if command.out.is_dir():
        raise ConfigurationError(f"{setting('out')} is {command.out}, which is a folder; give a file to write")
    with EvaluationProgress("fitting", "laws") as progress:
        laws, left_out = fit_laws(
            measurements, command.surface, command.forms, lambda name, done, total: progress.show(done, total, name)
        )
    laws = replace(laws, source=source_of(path, measurements, command.surface), task=task)
    write_laws(laws, command.out)
    _print_laws(laws, left_out)
    next_line = f"fedlm laws plan --laws {shlex.quote(str(command.out))} {_example(laws)}"
    print(f"\nThe laws are in {command.out}. Next:\n\n  {next_line}")
    return 0


def _example(laws: Laws) -> str:
    """Options of a plan that the laws are likely to reach: a middle size, a quarter of the steps, large batches."""
    surface = laws.surface
    if surface is None or laws.task.get("command") == FEDERATED or not len(surface.noise_batch_ratios):
        return "--help"
    size = float(np.median(surface.parameters))
    compute = FLOPS * size * surface.length * surface.measured_steps / 4 * 16 * surface.batch_size
    return f"--examples 1e6 --epsilon 8 --compute {compute:.0e}"


def _print_laws(laws: Laws, left_out: dict[str, str]) -> None:
    console = Console()

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False, highlight=False)

    trainings, whole = laws.source["trainings"], laws.source["trainings_of_the_grid"]
    if whole is not None and trainings < whole:
        say(f"Of {whole} trainings of the grid {trainings} are measured; `fedlm laws run` goes on with the others.")
    if (surface := laws.surface) is not None:
        say(
            f"Surface ({surface.method}): {len(surface.models)} models of {surface.parameters[0]:,.0f} to "
            f"{surface.parameters[-1]:,.0f} parameters, to {surface.measured_steps:,.0f} steps measured and "
            f"{surface.steps[-1]:,.0f} extrapolated, {len(surface.noise_batch_ratios)} noise-batch ratios, "
            f"{len(surface.draws)} draws."
        )
        for note in surface.notes:
            say(f"  {note}")
        _print_held_out(console, laws)
    for form in laws.forms.values():
        say(f"\n{form}")
    for name, why in left_out.items():
        say(f"\nleft out, {name}: {why}")


def _print_held_out(console: Console, laws: Laws) -> None:
    if not laws.held_out:
        console.print("Too little was measured to hold anything out.")
        return
    numbers = ("mean error", "largest error", "points", "out of reach")
    table = Table("held out", *(Column(name, justify="right") for name in numbers), title="Errors on losses not seen")
    for name, error in laws.held_out.items():
        shown = (f"{error['mean_relative_error']:.2%}", f"{error['max_relative_error']:.2%}")
        table.add_row(name.replace("_", " "), *shown, str(error["points"]), str(error["points_out_of_reach"]))
    console.print(table)


COMMAND = Command(FitCommand, main)
