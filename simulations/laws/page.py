"""The page of a file of laws: table 2, pictures, parametric laws and errors, in one HTML file."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from fedlm.fl_core.atomic_files import make_folder, write_atomically
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.simulations.laws.figures.figure import Evidence, LawFigure
from fedlm.simulations.laws.figures.registry import FIGURES
from fedlm.simulations.laws.figures.table import Progress, in_words, no_progress
from fedlm.simulations.laws.figures.table2 import SHOWN, saturating_table, shown_cell
from fedlm.simulations.laws.forms.fitted_form import FittedForm
from fedlm.simulations.laws.forms.registry import FORMS
from fedlm.simulations.laws.laws_file import Laws
from fedlm.simulations.laws.surface.loss_surface import LossSurface
from fedlm.simulations.plot_style import settle, to_svg
from fedlm.simulations.reporting.formatting import DASH
from fedlm.simulations.reporting.pages import page_template

STATEMENT = (
    "The trainings that were measured are NOT PRIVATE. Each epsilon on this page is that of a training which would "
    "be run with the noise beside it: unit: one training example, in all steps; adjacency: add-or-remove; delta 1e-8 "
    "unless said otherwise; assuming that each example is in each batch independently and in secret, and that only "
    "the model is published. What a run promises is stated by that run."
)


Watch = Callable[[str], AbstractContextManager[Progress]]


def unwatched(name: str) -> AbstractContextManager[Progress]:
    """Tell nobody of a part's progress."""
    return nullcontext(no_progress)


def write_laws_report(laws: Laws, evidence: Evidence, out: Path, command: str, *, progress: Watch = unwatched) -> Path:
    """Write the page of laws: one HTML file that needs no other.

    Args:
      laws: as read from their file.
      evidence: the same with the measurements, where they are at hand.
      out: the file.
      command: by which it was asked for, which the page repeats.
      progress: makes the context that a part is computed in, by its name, and is told of the part's progress.

    Returns:
      The file's path.

    Raises:
      ConfigurationError: the file's name does not end in .html.
    """
    if out.suffix.lower() != ".html":
        raise ConfigurationError(f"{setting('out')} is {str(out)!r}, but must be a file name that ends in .html")
    figures, left_out = _draw_all(evidence, progress)
    with progress("table 2") as told:
        saturating = _saturating(evidence, told)
    errors = list(_held_out(laws))
    head = list(dict.fromkeys(name for _, _, found in errors for name in found))
    page = page_template("laws.html").render(
        title=_title(laws),
        sentences=list(_sentences(laws)),
        statement=STATEMENT,
        saturating_head=list(SHOWN.values()),
        saturating=saturating,
        figures=figures,
        left_out=left_out,
        forms=[_form(fitted) for fitted in laws.forms.values()],
        held_out_head=[name.replace("_", " ") for name in head],
        held_out=[(law, split, [_error(name, found.get(name)) for name in head]) for law, split, found in errors],
        facts=list(_facts(laws)),
        command=command,
    )
    make_folder(out.parent)
    write_atomically(out, page)
    return out


def _draw_all(evidence: Evidence, progress: Watch) -> tuple[list[tuple[LawFigure, Markup]], list[str]]:
    drawn, left_out = [], []
    for figure in FIGURES.values():
        try:
            with progress(figure.name) as told:
                picture = figure.draw(figure.table(evidence, told))
        except ConfigurationError as error:
            left_out.append(str(error))
            continue
        settle(picture)
        # The drawings are our own markup, with names escaped by the drawing library.
        drawn.append((figure, Markup(to_svg(picture, figure.name))))
    return drawn, left_out


def _saturating(evidence: Evidence, progress: Progress) -> list[list[str]]:
    if evidence.search is None:
        return []
    rows = saturating_table(evidence.search, progress=progress).rows()
    return [[shown_cell(row[name]) for name in SHOWN] for row in rows]


def _title(laws: Laws) -> str:
    named = laws.source.get("measurements") or laws.task.get("data")
    surface = laws.surface
    sizes = "" if surface is None else f"{len(surface.models)} models of {_span(surface.parameters)} parameters"
    return ", ".join(filter(None, (sizes, f"measured in {named}" if named else "")))


def _span(values: Any) -> str:
    return f"{in_words(float(values[0]))} to {in_words(float(values[-1]))}" if len(values) > 1 else in_words(values[0])


def _sentences(laws: Laws) -> Iterator[str]:
    if laws.surface is not None:
        yield (
            f"The loss is known for {_span(laws.surface.parameters)} parameters, noise-batch ratios of "
            f"{_span(laws.surface.noise_batch_ratios)} and none, and {_span(laws.surface.steps)} steps, of which "
            f"{laws.surface.measured_steps:,.0f} were measured and the others are extrapolated."
        )
    for split, errors in laws.held_out.items():
        off = errors.get("mean_error", errors.get("mean_relative_error"))
        if off is not None:
            yield (
                f"Where a fit had not seen {_SPLITS.get(split, split.replace('_', ' '))}, it was off by "
                f"{off:.2%} on average."
            )
    unknown = {name: len(fitted.reasons) for name, fitted in laws.forms.items() if fitted.reasons}
    if unknown:
        listed = ", ".join(
            f"{name} ({count} of {len(laws.forms[name].coefficients)})" for name, count in unknown.items()
        )
        yield f"Of these parametric laws the measurements do not tell every coefficient: {listed}."


_SPLITS = {"cells": "some cells", "largest_model": "the largest model", "longest_runs": "the longest runs"}


class _Row(NamedTuple):
    name: str
    value: str
    interval: str
    meaning: str
    identified: str


def _form(fitted: FittedForm) -> dict[str, Any]:
    form = FORMS[fitted.form]
    rows = [
        _Row(
            one.name,
            in_words(fitted.coefficients[one.name]),
            f"{in_words(fitted.intervals[one.name][0])} to {in_words(fitted.intervals[one.name][1])}"
            if one.name in fitted.intervals
            else DASH,
            one.meaning,
            f"no: {fitted.reasons[one.name]}" if one.name in fitted.reasons else "yes",
        )
        for one in form.coefficients
    ]
    fit = (
        f"{fitted.rows:,} rows of {fitted.runs:,} trainings; {fitted.root_mean_square_log_error:.2%} error (root "
        f"mean square of logarithms); {fitted.agreeing_starts} of {fitted.starts} searches agree; intervals of "
        f"{fitted.level:.0%}."
    )
    return {"name": fitted.form, "text": form.text, "citation": form.citation, "fit": fit, "rows": rows}


def _held_out(laws: Laws) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    for split, errors in laws.held_out.items():
        yield "surface", split.replace("_", " "), errors
    for name, fitted in laws.forms.items():
        for split, errors in (fitted.held_out or {}).items():
            yield name, split.replace("_", " "), errors


def _error(name: str, value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:.2%}" if name.endswith(("error", "bias")) else f"{value:,.0f}"


def _facts(laws: Laws) -> Iterator[tuple[str, str]]:
    if laws.surface is not None:
        yield from _surface_facts(laws.surface)
    for about, values in (("fit", laws.source), ("task", laws.task)):
        for name, value in values.items():
            yield f"{about}: {name.replace('_', ' ')}", str(value)


def _surface_facts(surface: LossSurface) -> Iterator[tuple[str, str]]:
    sizes = zip(surface.models, surface.parameters, strict=True)
    yield "models", ", ".join(f"{name} ({in_words(float(parameters))})" for name, parameters in sizes)
    yield "noise-batch ratios", ", ".join(in_words(float(ratio)) for ratio in surface.noise_batch_ratios)
    yield "batch size", f"{surface.batch_size:,} examples of {surface.length:,} tokens"
    yield "measured steps", f"{surface.measured_steps:,.0f}"
    yield "method", surface.method
    yield "draws of the bands", str(len(surface.draws))
    for number, note in enumerate(surface.notes, 1):
        yield f"note {number}", note
