"""Any runs beside each other: curves, scores and settings on one self-contained page, plots as PNG files, and CSV."""

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.rounds.scores import DEFINITIONS
from fedlm.fl_core.runs.recorded_runs import RecordedRun
from fedlm.simulations.plot_style import FAMILIES, MARKERS
from fedlm.simulations.reporting.formatting import (
    DASH,
    format_megabytes,
    format_number,
    format_percent,
    format_perplexity,
)
from fedlm.simulations.reporting.pages import page_template, write_figure
from fedlm.simulations.reporting.plots.curves import Line, curves_figure
from fedlm.simulations.reporting.plots.line_styles import LineStyle
from fedlm.simulations.reporting.selection import Curve, finite

CSV_COLUMNS = (
    *("run", "kind", "model", "state", "done", "asked", "heldout_perplexity", "test_perplexity", "test_accuracy"),
    *("bytes_up", "training_seconds", "privacy"),
)
_DASHES = ("-", (0, (4, 2)), (0, (1, 1)))


class Point(NamedTuple):
    """A held-out score of a run, and what it had taken until then."""

    done: int  # rounds or steps
    score: float
    bytes_up: float  # of all clients together
    seconds: float


class Overlay(NamedTuple):
    """A plot of all runs over each other."""

    name: str  # of its PNG file
    caption: str  # what to see in it
    figure: Figure


class NamedRun(NamedTuple):
    """A run and what it is called beside the others."""

    name: str
    run: RecordedRun


def write_runs_page(runs: Sequence[RecordedRun], out: Path, command: str) -> Path:
    """Write report.html, runs.csv and plots/*.png into a folder, which is made where absent.

    The command that was given is repeated on the page. Returns the path of report.html.
    """
    make_folder(out / "plots")
    named = name_runs(runs)
    drawn = [(overlay, write_figure(overlay.figure, overlay.name, out / "plots")) for overlay in _overlays(named)]
    write_atomically(out / "runs.csv", runs_csv(named))
    page = page_template("runs.html").render(
        runs=[(one, _cells(one.run)) for one in named],
        privacy=list(dict.fromkeys(run.privacy for run in runs)),
        kinds=list(dict.fromkeys(run.kind for run in runs)),
        warnings=warnings(runs),
        plots=drawn,
        settings=different_settings(named),
        definitions=DEFINITIONS,
        command=command,
    )
    path = out / "report.html"
    write_atomically(path, page)
    return path


def name_runs(runs: Sequence[RecordedRun]) -> list[NamedRun]:
    """Call each run by as little of the end of its path as tells it apart from the others."""
    paths = [Path(os.path.normpath(run.directory.absolute())).parts for run in runs]
    ends = [next((path[-n:] for n in range(1, len(path)) if _ending(paths, path[-n:]) == 1), path) for path in paths]
    names = []
    for end in ends:
        alike = [other for other in ends if len(other) == len(end)]
        # Cells of a comparison differ in their models, say, but not in all that is in their paths.
        telling = [part for place, part in enumerate(end) if any(other[place] != part for other in alike)]
        names.append("/".join(telling or end))
    unique = len(set(names)) == len(names)
    return [NamedRun(name if unique else "/".join(end), run) for name, end, run in zip(names, ends, runs, strict=True)]


def _ending(paths: Sequence[tuple[str, ...]], end: tuple[str, ...]) -> int:
    return sum(path[-len(end) :] == end for path in paths)


def warnings(runs: Sequence[RecordedRun]) -> list[str]:
    """Say what keeps the runs' scores from being compared."""
    said = []
    if len({run.vocabulary for run in runs} - {None}) > 1:
        said.append(
            "These runs have different vocabularies: a perplexity is per token, and those of different vocabularies "
            "cannot be compared."
        )
    if len({run.settings.get("data") for run in runs if run.settings.get("data")}) > 1:
        said.append("These runs have different data sets, and were scored on different clients.")
    objectives = {str((run.summary or {}).get("objective", "causal")) for run in runs}
    if len(objectives) > 1:
        said.append(
            "Some of these models predict masked words and others the next one; their scores cannot be compared."
        )
    if any(run.state not in ("finished", "diverged") for run in runs):
        said.append("Not all of these runs are over.")
    return said


def points(run: RecordedRun, score: str) -> list[Point]:
    """Read a run's finite held-out scores, such as `perplexity`."""
    found = []
    bytes_up = seconds = 0.0
    for row in run.rows:
        bytes_up += finite(row.get("bytes_up")) or 0.0
        seconds += finite(row.get("seconds")) or 0.0
        value = finite(row.get(f"heldout_{score}"))
        if value is not None:
            found.append(Point(row[run.counter] + 1, value, bytes_up, seconds))
    return found


def _overlays(runs: Sequence[NamedRun]) -> list[Overlay]:
    counted = " and ".join(dict.fromkeys(f"{one.run.counter}s" for one in runs))
    over = "A cross is a run that diverged; a line that ends early is a run that was, or is still, shorter."

    def overlay(
        name: str,
        score: str,
        *,
        by: str,
        across: str,
        x: Callable[[Point], float],
        caption: str,
        of: Sequence[NamedRun],
    ) -> Overlay:
        lines = [_line(one, runs.index(one), score, x) for one in of]
        return Overlay(name, caption, curves_figure(lines, score, by=by, across=across)[0])

    learning, right = (
        f"How fast each run learns; lower is better. {over}",
        f"How often the likeliest token is right. {over}",
    )
    time = "What quality costs in time; runs may have been on different machines, or have shared one."
    overlays = [
        overlay("perplexity", "perplexity", by=counted, across=f"{counted} done", x=_done, caption=learning, of=runs),
        overlay("accuracy", "accuracy", by=counted, across=f"{counted} done", x=_done, caption=right, of=runs),
        overlay(
            "time", "perplexity", by="training time", across="seconds of training", x=_seconds, caption=time, of=runs
        ),
    ]
    federated = [one for one in runs if one.run.counter == "round"]
    if any(row.get("bytes_up") for one in federated for row in one.run.rows):
        across = "uploaded by all clients together (MB)"
        upload = "What quality costs in upload, as updates travel; central training, which has none, is left out."
        overlays.append(
            overlay("upload", "perplexity", by="upload", across=across, x=_megabytes, caption=upload, of=federated)
        )
    return overlays


def _done(point: Point) -> float:
    return point.done


def _seconds(point: Point) -> float:
    return point.seconds


def _megabytes(point: Point) -> float:
    return point.bytes_up / 1e6


def _line(one: NamedRun, number: int, score: str, x: Callable[[Point], float]) -> Line:
    style = LineStyle(
        color=FAMILIES[number % len(FAMILIES)],
        marker=MARKERS[number % len(MARKERS)],
        linestyle=_DASHES[number // len(FAMILIES) % len(_DASHES)],
        linewidth=1.8,
    )
    found = points(one.run, score)
    if not found:
        return Line(one.name, style, None, [])
    across, values = np.array([x(point) for point in found]), np.array([point.score for point in found])
    if one.run.state == "diverged":
        return Line(one.name, style, None, [(across, values)])
    return Line(one.name, style, Curve(across, np.zeros_like(across), values, None), [])


def different_settings(runs: Sequence[NamedRun]) -> list[tuple[str, list[str]]]:
    """List the settings that differ between the runs, each with its values; a dash where a run has no such setting."""
    names = dict.fromkeys(name for one in runs for name in one.run.settings)
    values = {name: [one.run.settings.get(name, DASH) for one in runs] for name in names}
    return [(name, list(map(str, found))) for name, found in values.items() if len(set(map(str, found))) > 1]


def _cells(run: RecordedRun) -> list[str]:
    bytes_up = sum(finite(row.get("bytes_up")) or 0.0 for row in run.rows)
    seconds = sum(finite(row.get("seconds")) or 0.0 for row in run.rows)
    return [
        f"{run.done:,} of {run.asked:,}" if run.asked else f"{run.done:,}",
        format_perplexity(run.score("heldout_perplexity")),
        format_perplexity(run.score("test_perplexity")),
        format_percent(run.score("test_accuracy")),
        format_megabytes(bytes_up) if bytes_up else DASH,
        format_number(seconds),
    ]


def run_facts(run: RecordedRun) -> dict[str, Any]:
    """Collect what is told of a run among others, as JSON has it."""
    return {
        "run": str(run.directory),
        "kind": run.kind,
        "model": run.model,
        "state": run.state,
        "counter": run.counter,
        "done": run.done,
        "asked": run.asked,
        **{name: finite(run.score(name)) for name in ("heldout_perplexity", "test_perplexity", "test_accuracy")},
        "bytes_up": sum(finite(row.get("bytes_up")) or 0.0 for row in run.rows),
        "training_seconds": sum(finite(row.get("seconds")) or 0.0 for row in run.rows),
        "privacy": run.privacy,
        "bytes": run.size,
        "changed": run.changed,
    }


def runs_csv(runs: Sequence[NamedRun]) -> str:
    """Write what is told of each run as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(run_facts(one.run) | {"run": one.name} for one in runs)
    return text.getvalue()
