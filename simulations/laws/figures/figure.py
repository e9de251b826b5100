"""What a picture of scaling laws is: what it is made of, its numbers, its drawing and its files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.simulations.laws.figures.search import TrainingSearch
from fedlm.simulations.laws.figures.table import Progress, Table, no_progress
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.laws_file import Laws, read_laws
from fedlm.simulations.laws.measuring.measurements import Measurements, measurements_file, read_measurements
from fedlm.simulations.plot_style import settle, to_png


@dataclass(frozen=True)
class Evidence:
    """What pictures are made of, as far as there is any.

    Attributes:
      search: of best trainings on a surface of losses; None without one.
      forms: the fitted parametric laws, by name.
      measurements: that laws were fitted to; None where they are not at hand.
    """

    search: TrainingSearch | None = None
    forms: Mapping[str, FittedForm] = field(default_factory=dict)
    measurements: Measurements | None = None

    def searching(self) -> TrainingSearch:
        """Return the search. Raises ConfigurationError where the laws have no surface of losses."""
        if self.search is None:
            raise ConfigurationError("the file of laws has no surface of losses; fit one with `fedlm laws fit`")
        return self.search

    def measured(self) -> Measurements:
        """Return the measurements. Raises ConfigurationError where they were not given."""
        if self.measurements is None:
            raise ConfigurationError(f"there are no measurements; give them with {setting('measurements')}")
        return self.measurements

    def losses(self, parameters: Any, steps: Any, noise_batch_ratio: Any) -> np.ndarray:
        """Predict losses of trainings; NaN where there is no surface, or where it does not reach."""
        if self.search is None:
            shapes = (np.shape(one) for one in (parameters, steps, noise_batch_ratio))
            return np.full(np.broadcast_shapes(*shapes), np.nan)
        return self.search.surface.predict(parameters, steps, noise_batch_ratio)


@dataclass(frozen=True)
class LawFigure:
    """A picture.

    Attributes:
      name: by which it is asked for, and of its file.
      caption: what to see in it, and where the paper has it.
      tabulate: computes its numbers.
      draw: draws them.
      surface: whether it needs a surface of losses.
      measurements: whether it needs the measurements.
      wide: whether it wants the whole width of a page.
    """

    name: str
    caption: str
    tabulate: Callable[[Evidence, Progress], Table]
    draw: Callable[[Table], Figure]
    surface: bool = False
    measurements: bool = False
    wide: bool = False

    def missing(self, evidence: Evidence) -> str | None:
        """Say what is missing to draw it; None where all is there."""
        if self.surface and evidence.search is None:
            return "needs a file of laws with a surface of losses; make one with `fedlm laws fit`"
        if self.measurements and evidence.measurements is None:
            return f"needs the measurements that the laws were fitted to; give them with {setting('measurements')}"
        return None

    def table(self, evidence: Evidence, progress: Progress = no_progress) -> Table:
        """Compute its numbers.

        Raises:
          ConfigurationError: something is missing, or nothing of it is within the grid.
        """
        if missing := self.missing(evidence):
            raise ConfigurationError(f"{self.name} {missing}")
        table = self.tabulate(evidence, progress)
        if not len(table):
            raise ConfigurationError(f"{self.name} has nothing to show: the measurements have no rows that it is about")
        if "loss" in table.columns and self.surface and not np.isfinite(table["loss"]).any():
            raise ConfigurationError(f"{self.name} has nothing to show: its budgets are all outside of the laws' grid")
        return table


def read_evidence(laws: Path | None, measurements: Path | None) -> Evidence:
    """Read a file of laws and one of measurements, or the folder that it is in, as far as they are given.

    Raises:
      DataError: a file cannot be read, or is not what it should be.
    """
    return evidence_of(None if laws is None else read_laws(laws), measurements)


def evidence_of(laws: Laws | None, measurements: Path | None) -> Evidence:
    """Make evidence of laws that were read, and of a file of measurements. Raises DataError where that is none."""
    surface = laws.surface if laws else None
    return Evidence(
        search=None if surface is None else TrainingSearch(surface),
        forms=laws.forms if laws else {},
        measurements=None if measurements is None else read_measurements(measurements_file(measurements)),
    )


DataFormat = Literal["csv", "json"]


def write_law_figure(figure: LawFigure, table: Table, out: Path, data: DataFormat | None = None) -> list[Path]:
    """Draw a table into a PNG file, and write its numbers beside it where a form of these is named.

    Returns:
      The paths of what was written.

    Raises:
      ConfigurationError: the file's name does not end in .png.
    """
    check_picture_name(out)
    drawn = figure.draw(table)
    settle(drawn)
    make_folder(out.parent)
    write_atomically(out, to_png(drawn))
    if data is None:
        return [out]
    beside = out.with_suffix(f".{data}")
    write_atomically(beside, table.as_csv() if data == "csv" else table.as_json())
    return [out, beside]


def check_picture_name(out: Path) -> None:
    """Refuse a file name that does not end in .png, as a ConfigurationError."""
    if out.suffix.lower() != ".png":
        raise ConfigurationError(f"{setting('out')} is {str(out)!r}, but must be a file name that ends in .png")
