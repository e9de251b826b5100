"""The report of a comparison: one self-contained HTML page, results.csv and the plots as PNG files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from fl_core.atomic_files import write_atomically
from fl_core.scores import DEFINITIONS
from simulations.comparison import CellResult
from simulations.configuration import Comparison
from simulations.reporting import tables
from simulations.reporting.formatting import format_number, format_spread
from simulations.reporting.plot_style import settle, to_png, to_svg
from simulations.reporting.plots import accuracy_plot, perplexity_plot, upload_plot
from simulations.reporting.rate_maps import rate_map_plot
from simulations.reporting.selection import ModelResult, model_results
from simulations.reporting.summary import privacy_statements, summary_sentences
from simulations.reporting.verdicts import judge_twins


class Plot(NamedTuple):
    """A plot of the report.

    Attributes:
      name: of its PNG file.
      draw: makes the figure.
      caption: what to see in it.
    """

    name: str
    draw: Callable[[Sequence[ModelResult]], Figure]
    caption: str


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


def write_report(comparison: Comparison, results: list[CellResult], out: Path, command: str) -> Path:
    """Write report.html, results.csv and plots/*.png.

    Args:
      comparison: the settings.
      results: of all cells.
      out: folder of the comparison; made where absent.
      command: that was given, to be repeated.

    Returns:
      The path of report.html.
    """
    models = model_results(results)
    (out / "plots").mkdir(parents=True, exist_ok=True)
    drawings = {}
    for plot in PLOTS:
        figure = plot.draw(models)
        settle(figure)
        write_atomically(out / "plots" / f"{plot.name}.png", to_png(figure))
        drawings[plot.name] = to_svg(figure, plot.name)
    write_atomically(out / "results.csv", tables.results_csv(results, models))
    path = out / "report.html"
    write_atomically(path, render_page(comparison, results, models, drawings, command))
    return path


def render_page(
    comparison: Comparison,
    results: Sequence[CellResult],
    models: Sequence[ModelResult],
    drawings: dict[str, str],
    command: str,
) -> str:
    """Fill the page's template.

    Args:
      comparison: the settings.
      results: of all cells.
      models: what was found about each model.
      drawings: an SVG element for each of `PLOTS`, by name.
      command: that was given.

    Returns:
      The page.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    chosen = tables.selected_results(models)
    return environment.get_template("report.html").render(
        comparison=comparison,
        sentences=summary_sentences(comparison, results, models),
        privacy=privacy_statements(results),
        verdicts=[list(pair) for pair in zip(*(judge_twins(models, score) for score in _JUDGED), strict=True)],
        headline=tables.HEADLINE,
        headline_rows=[tables.headline_row(entry) for entry in models],
        runs=[(result, tables.run_row(result, id(result) in chosen)) for result in results],
        # The drawings are our own markup, with names escaped by the drawing library.
        plots=[(plot, Markup(drawings[plot.name])) for plot in PLOTS],
        definitions=DEFINITIONS,
        settings=tables.setting_rows(comparison),
        machines=tables.machine_rows(results),
        command=command,
        format_number=format_number,
        format_spread=format_spread,
    )


_JUDGED = ("perplexity", "accuracy")
