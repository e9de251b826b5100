"""The report of a comparison: one self-contained HTML page, results.csv and the plots as PNG files."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.rounds.scores import DEFINITIONS
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.simulations.comparisons.cells import CellResult
from fedlm.simulations.experiments.configuration import Comparison
from fedlm.simulations.reporting import tables
from fedlm.simulations.reporting.formatting import format_number
from fedlm.simulations.reporting.gaps import finding, gaps
from fedlm.simulations.reporting.pages import page_template, write_figure
from fedlm.simulations.reporting.plots.curves import accuracy_plot, perplexity_plot, upload_plot
from fedlm.simulations.reporting.plots.rate_maps import rate_map_plot
from fedlm.simulations.reporting.plots.utility_plots import can_draw_utility, utility_plot
from fedlm.simulations.reporting.privacy_summary import model_names, privacy_marks, privacy_rows, privacy_statements
from fedlm.simulations.reporting.run_privacy import privacy_key
from fedlm.simulations.reporting.selection import ModelResult, model_results
from fedlm.simulations.reporting.summary import summary_sentences

REPORT_FILE = "report.html"


class Plot(NamedTuple):
    """A plot of the report."""

    name: str  # of its PNG file
    draw: Callable[[Sequence[Any]], Figure]  # of results of models
    caption: str  # what to see in it


_RUNS = (
    "Mean over the seeds that finished, shaded by one standard deviation to either side; dotted lines to a cross are "
    "single seeds that diverged or failed."
)
PLOTS = (
    Plot(
        "perplexity",
        perplexity_plot,
        "How fast each model learns at its selected learning rates. A ring marks where a scale-invariant model is "
        f"first at or below its standard twin's final perplexity. {_RUNS}",
    ),
    Plot("accuracy", accuracy_plot, f"How often the most likely token is the right one. {_RUNS}"),
    Plot(
        "learning_rates",
        rate_map_plot,
        "How sensitive each model is to its learning rates: the mean over the seeds that finished, hatched where some "
        "diverged or failed. The frame is the combination selected by held-out loss, which counts EOS targets too, so "
        "that its perplexity need not be the lowest.",
    ),
    Plot(
        "upload",
        upload_plot,
        f"What quality costs in upload: the updates of all clients of all rounds so far, as they travel. {_RUNS}",
    ),
)


UTILITY_PLOT = Plot(
    "privacy_utility",
    utility_plot,
    "What privacy costs each model: the further left, the more private. Vertical bars are one standard deviation over "
    "seeds to either side. The points at no noise, and the dotted lines through them, are what the same training "
    "reaches without privacy; a cross at the top is an epsilon at which no run finished.",
)


class Drawing(NamedTuple):
    """A drawn plot."""

    plot: Plot
    svg: Markup  # the element for the page


class Drawings(NamedTuple):
    """All plots of a report."""

    utility: list[Drawing]  # what privacy costs; empty where no two levels of privacy are compared
    # the others, by the privacy of their runs in words, which is empty where all have the same
    plots: dict[str, list[Drawing]]


@checked_arguments
def write_report(comparison: Comparison, results: list[CellResult], out: StrPath, command: str) -> Path:
    """Write report.html, results.csv and `plots/*.png` into a comparison's folder, which is made where absent.

    The command that was given is repeated on the page. Returns the path of report.html.

    Example:
      >>> results = run_comparison(comparison, out, fedlm.LocalProcesses(2))  # doctest: +SKIP
      >>> write_report(comparison, results, out, "my_script.py")  # doctest: +SKIP
    """
    models, out = model_results(results), Path(out)
    (out / "plots").mkdir(parents=True, exist_ok=True)
    drawings = _draw(models, out / "plots")
    write_atomically(out / "results.csv", tables.results_csv(results, models))
    path = out / REPORT_FILE
    write_atomically(path, render_page(comparison, results, models, drawings, command=command))
    return path


def _draw(models: Sequence[ModelResult], folder: Path) -> Drawings:
    utility = [UTILITY_PLOT] if can_draw_utility(models) else []
    by_label: dict[str, list[ModelResult]] = {}
    for entry in models:
        by_label.setdefault(entry.label, []).append(entry)
    return Drawings(
        [_draw_one(plot, models, plot.name, folder) for plot in utility],
        {
            label: [_draw_one(plot, entries, plot.name + _file_ending(label), folder) for plot in PLOTS]
            for label, entries in by_label.items()
        },
    )


def _draw_one(plot: Plot, models: Sequence[ModelResult], name: str, folder: Path) -> Drawing:
    return Drawing(plot, write_figure(plot.draw(models), name, folder))


def _file_ending(label: str) -> str:
    return f"_{re.sub('[^0-9a-zA-Z.]+', '_', label)}" if label else ""


def render_page(
    comparison: Comparison,
    results: Sequence[CellResult],
    models: Sequence[ModelResult],
    drawings: Drawings,
    *,
    command: str,
) -> str:
    """Fill the page's template."""
    chosen = tables.selected_results(models)
    labels = {group.privacy_key: entry.label for entry in models for group in entry.groups}
    found = gaps(models)
    return page_template("report.html").render(
        comparison=comparison,
        uploads=comparison.training.compression or f"{comparison.training.upload_bits}-bit",
        sentences=summary_sentences(comparison, results, models),
        privacy=privacy_marks(models),
        equal_privacy=privacy_rows(models, found),
        equal_privacy_models=model_names(models),
        statements=privacy_statements(models),
        clipping=_clipping(comparison),
        utility_plots=drawings.utility,
        gaps=found,
        finding=finding(found),
        published=tables.published_rows(comparison, models),
        headline=tables.HEADLINE,
        headline_rows=[tables.headline_row(entry) for entry in models],
        runs=[
            (result, labels[privacy_key(result)], tables.run_row(result, id(result) in chosen)) for result in results
        ],
        plots=list(drawings.plots.items()),
        definitions=DEFINITIONS,
        settings=tables.setting_rows(comparison),
        machines=tables.machine_rows(results),
        command=command,
        format_number=format_number,
    )


def _clipping(comparison: Comparison) -> str:
    clipped = (
        f"clipped to norm {comparison.training.update_clip_norm:g}"
        if comparison.training.update_clip_norm
        else "not clipped"
    )
    return f"Updates of all runs are {clipped}, and all clients weigh the same, with noise or without."
