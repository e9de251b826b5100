"""The page of a comparison that is under way, where its report will be: curves so far, and how far each run has come.

It is written anew as runs are scored, and reloads itself in a browser until the report takes its place.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.privacy.origins.ancestry import NOT_PRIVATE
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, read_rows
from fedlm.fl_core.runs.identity import SUMMARY_FILE
from fedlm.simulations.comparisons.cell_execution import Row
from fedlm.simulations.comparisons.cells import Cell, CellResult, list_cells
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.reporting.formatting import format_number
from fedlm.simulations.reporting.pages import page_template, write_figure
from fedlm.simulations.reporting.plots.curves import Line, curves_figure
from fedlm.simulations.reporting.plots.line_styles import line_styles
from fedlm.simulations.reporting.report import REPORT_FILE, Drawing, Plot
from fedlm.simulations.reporting.run_privacy import NO_NOISE, privacy_key
from fedlm.simulations.reporting.selection import heldout_points, mean_curve
from fedlm.simulations.reporting.tables import rounds_done, run_row

RELOAD_SECONDS = 10
BEGUN, WAITING = "begun", "waiting"
_LEAST_SECONDS, _SHARE_OF_TIME = 15.0, 0.04


class ProgressPage:
    """Writes the page of one comparison, the first time as soon as there is a curve, and then now and then."""

    def __init__(
        self,
        comparison: Comparison,
        out: Path,
        announce: Callable[[Path], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        """Write nothing yet.

        Args:
          comparison: its settings.
          out: its folder.
          announce: called with the path of the page when it has been written for the first time.
          clock: gives the time in seconds.
        """
        self._comparison, self._out, self._announce, self._clock = comparison, out, announce, clock
        self._cells = list_cells(comparison, out)
        self._scores: dict[Cell, int] = {}
        self._next: float | None = None

    def update(self, cell: Cell, row: Row) -> None:
        """Be told a new row of a run. Raises DiskError where the page cannot be written."""
        if row.get("heldout_loss") is None:
            return
        self._scores[cell] = self._scores.get(cell, 0) + 1
        is_curve = self._scores[cell] > 1 or row["round"] + 1 == self._comparison.rounds
        began = self._clock()
        if began < self._next if self._next is not None else not is_curve:
            return
        path = write_progress_page(self._comparison, [result_so_far(one) for one in self._cells], self._out)
        if self._next is None:
            self._announce(path)
        # Drawing takes time from the trainings.
        ended = self._clock()
        self._next = ended + max(_LEAST_SECONDS, (ended - began) / _SHARE_OF_TIME)


def result_so_far(cell: Cell) -> CellResult:
    """Read what there is of a run, whose status is `begun` or `waiting` where it has not ended.

    What its summary says of privacy is not compared with its ledger.
    """
    rows = read_rows(cell.directory / METRICS_FILE)
    try:
        return CellResult(cell, json.loads((cell.directory / SUMMARY_FILE).read_text(encoding="utf-8")), rows)
    except (OSError, json.JSONDecodeError):
        scored: Row = next((row for row in reversed(rows) if row.get("heldout_loss") is not None), {})
        scores = {name: value for name, value in scored.items() if name.startswith("heldout_")}
        return CellResult(cell, {"status": BEGUN if rows else WAITING, **scores}, rows)


def write_progress_page(comparison: Comparison, results: Sequence[CellResult], out: Path) -> Path:
    """Write the page, and its plot as PNG, where those of the report will be.

    Args:
      comparison: its settings.
      results: all its runs, see `result_so_far`.
      out: its folder.

    Returns:
      The path of the page.

    Raises:
      DiskError: they cannot be written.
    """
    (out / "plots").mkdir(parents=True, exist_ok=True)
    drawing = Drawing(_PLOT, write_figure(progress_plot(results), _PLOT.name, out / "plots"))
    without_noise = not any(result.cell.experiment.privacy.is_private for result in results)
    page = page_template("progress.html").render(
        comparison=comparison,
        privacy=NOT_PRIVATE if without_noise else "the statements of private runs appear when all have ended",
        private=not without_noise,
        ended=sum(result.status not in (BEGUN, WAITING) for result in results),
        done=sum(map(rounds_done, results)),
        plots=[drawing],
        runs=[(_name(result, results), result.status, run_row(result, False)) for result in results],
        reload_seconds=RELOAD_SECONDS,
        format_number=format_number,
    )
    path = out / REPORT_FILE
    write_atomically(path, page)
    return path


def progress_plot(results: Sequence[CellResult]) -> Figure:
    """Draw held-out perplexity against rounds, a bold line for one run of each model and privacy, thin ones for its
    others."""
    styles = line_styles(list(dict.fromkeys(result.cell.experiment.model for result in results)))
    runs: dict[str, list[CellResult]] = {}
    for result in results:
        if heldout_points(result, "perplexity"):
            runs.setdefault(_name(result, results), []).append(result)
    lines = []
    for name, begun in runs.items():
        leading = min(begun, key=_rank)
        others = [curve for one in begun if one is not leading and (curve := mean_curve([one], "perplexity"))]
        style = styles[leading.cell.experiment.model]
        lines.append(Line(name, style, mean_curve([leading], "perplexity"), [], others))
    return curves_figure(lines, "perplexity", by="round, so far (lower is better)", across="rounds done")[0]


_PLOT = Plot(
    "perplexity",
    progress_plot,
    "Held-out perplexity of single runs so far. The bold line of each model is its run with the most "
    "rounds and, among equals, the lowest perplexity; thin lines are its other runs. The learning rates that stand for "
    "a model are decided when all runs have ended.",
)


def _rank(result: CellResult) -> tuple[int, float]:
    done, (perplexity, _) = list(heldout_points(result, "perplexity").items())[-1]
    return -done, perplexity


def _name(result: CellResult, results: Sequence[CellResult]) -> str:
    """Name a run's model, with its privacy where that differs between the runs."""
    model, key = result.cell.experiment.model, privacy_key(result)
    if len({privacy_key(one) for one in results}) == 1:
        return model
    return f"{model} ({_words(*key)})"


def _words(mechanism: str, target_epsilon: Any) -> str:
    if mechanism == "none":
        return NO_NOISE
    return mechanism if target_epsilon is None else f"{mechanism}, target epsilon {target_epsilon:g}"
