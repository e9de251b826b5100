"""Make the laws that `fedlm laws plan` plans by where none are given, from `results`' measurements of the `small` grid.

python -m benchmarks.laws.ship [--partial] [--out FILE]
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.laws.small_grid import RESULTS
from fedlm.simulations.laws.fit import fit_laws, source_of, task_of
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.laws_file import ABOUT, SHIPPED_FILE, Laws, write_laws
from fedlm.simulations.laws.measuring.measurements import measurements_file, read_measurements
from fedlm.simulations.laws.surface.fitted_losses import SurfaceSettings

SETTINGS = SurfaceSettings(kept_steps=24, doublings=4, draws=40)
"""Fewer steps and draws than by default, so that the file is small."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Make the laws that come with the package."""

    partial: bool = False
    """Make them of a grid that is not finished; the laws say so."""
    out: Path = SHIPPED_FILE
    """The file to write."""


def main() -> int:
    """Fit the measurements, and write the file."""
    options = tyro.cli(Options)
    path = measurements_file(RESULTS)
    measurements = read_measurements(path)
    source = source_of(path, measurements, SETTINGS)
    trainings, cells = source["trainings"], source["trainings_of_the_grid"]
    if trainings < cells and not options.partial:
        print(f"{path} has {trainings} of {cells} trainings; finish the grid, or give --partial", file=sys.stderr)
        return 1
    laws, left_out = fit_laws(measurements, SETTINGS, tuple(FORMS))
    for name, why in left_out.items():
        print(f"left out, {name}: {why}", file=sys.stderr)
    about = describe(laws, trainings, cells)
    write_laws(dataclasses.replace(laws, source=source | {ABOUT: about}, task=task_of(path, measurements)), options.out)
    print(f"{about}\n{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return 0


def describe(laws: Laws, trainings: int, cells: int) -> str:
    """Say in a sentence what the laws are of."""
    surface = laws.surface
    assert surface is not None
    of_grid = f"{trainings} trainings" if trainings == cells else f"{trainings} of {cells} trainings"
    return (
        f"the grid `small`: {of_grid} of decoders of {surface.parameters[0]:,.0f} to {surface.parameters[-1]:,.0f} "
        f"parameters, {surface.measured_steps:,.0f} steps of {surface.batch_size} examples of {surface.length} tokens, "
        "posts of four Stack Exchange sites in a vocabulary of 512, on two CPU cores. For another text, vocabulary or "
        "length, and for larger models, they are an illustration: measure a grid of your own"
    )


if __name__ == "__main__":
    sys.exit(main())
