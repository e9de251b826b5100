"""Curves of held-out scores against rounds and against uploaded bytes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlm.simulations.comparisons.cells import CellResult
from fedlm.simulations.plot_style import INK, MUTED, new_figure, short_name, style_frame
from fedlm.simulations.reporting.formatting import format_percent, format_perplexity
from fedlm.simulations.reporting.plots.line_styles import LineStyle, line_styles
from fedlm.simulations.reporting.selection import Curve, ModelResult, heldout_points

HEIGHT = 3.9
LABEL_GAP = 0.068
"""Least distance of two labels beside the axes, as a share of their height."""
TOP_LABEL = 0.97
MOST_MARKERS = 30
UNITS = ((1e6, "MB"), (1e9, "GB"), (1e12, "TB"))


class Line(NamedTuple):
    """What is drawn of one model."""

    model: str
    style: LineStyle
    mean: Curve | None  # its curve over the seeds that finished; None where none did
    lost: list[tuple[np.ndarray, np.ndarray]]  # (x values, scores) of each seed that diverged or failed


def perplexity_plot(models: Sequence[ModelResult]) -> Figure:
    """Draw held-out perplexity against rounds, at each model's selected learning rates."""
    figure, axes = _curves_figure(models, "perplexity", by="round (lower is better)", across="rounds done")
    styles = line_styles([entry.model for entry in models])
    for entry in models:
        curve = entry.selected.curve("perplexity") if entry.selected else None
        if curve is not None and entry.rounds_to_twin is not None:
            at = int(np.flatnonzero(curve.rounds == entry.rounds_to_twin)[0])
            colour = styles[entry.model]["color"]
            axes.plot(curve.rounds[at], curve.mean[at], "o", ms=10, mfc="none", mec=colour, mew=1.6, zorder=5)
    return figure


def accuracy_plot(models: Sequence[ModelResult]) -> Figure:
    """Draw held-out accuracy against rounds, at each model's selected learning rates."""
    return _curves_figure(models, "accuracy", by="round (higher is better)", across="rounds done")[0]


def upload_plot(models: Sequence[ModelResult]) -> Figure:
    """Draw held-out perplexity against the bytes that all clients together have uploaded."""
    curves = [curve for entry in models if entry.selected and (curve := entry.selected.curve("perplexity"))]
    most = max((float(curve.bytes_up[-1]) for curve in curves), default=0.0)
    size, unit = next(((size, unit) for size, unit in UNITS if most < 1e4 * size), UNITS[-1])
    across = f"uploaded by all clients together ({unit})"
    by = "upload (lower left is better)"
    return _curves_figure(models, "perplexity", by=by, across=across, x=lambda curve: curve.bytes_up / size)[0]


def _curves_figure(
    models: Sequence[ModelResult],
    score: str,
    *,
    by: str,
    across: str,
    x: Callable[[Curve], np.ndarray] = lambda curve: curve.rounds,
) -> tuple[Figure, Axes]:
    """Draw a line a model, named beside its end.

    Args:
      models: what is drawn.
      score: `perplexity` or `accuracy`.
      by: what the title says that it is drawn against.
      across: what the horizontal axis says.
      x: where the points of a curve lie on that axis.
    """
    styles = line_styles([entry.model for entry in models])
    lines = [_line(entry, styles[entry.model], score, x) for entry in models]
    figure = new_figure(HEIGHT + 0.25 * max(0, len(lines) - 10))
    axes = figure.add_subplot()
    axes.set_title(f"Held-out {score} by {by}", loc="left", color=INK, weight="bold")
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(f"held-out {score}\n(PAD and EOS targets left out)", color=INK)
    style_axes(axes, score)
    scores = [line.mean.mean for line in lines if line.mean] or [values for line in lines for _, values in line.lost]
    if not scores:
        axes.text(0.5, 0.5, "no run has a held-out score", ha="center", color=MUTED, transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return figure, axes
    for line in lines:
        _draw_line(axes, line, x)
    _set_limits(axes, lines, score, x)
    for line in lines:
        _draw_lost(axes, line)
    _label_lines(axes, lines, score, x)
    return figure, axes


def _line(entry: ModelResult, style: LineStyle, score: str, x: Callable[[Curve], np.ndarray]) -> Line:
    group = entry.selected
    if group is None:
        return Line(entry.model, style, None, [])
    lost = [seed for result in group.results if result.status != "finished" if (seed := _seed(result, score, x))]
    return Line(entry.model, style, group.curve(score), lost)


def _seed(result: CellResult, score: str, x: Callable[[Curve], np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    points = heldout_points(result, score)
    if not points:
        return None
    values, bytes_up = np.array(list(points.values())).T
    return x(Curve(np.array(list(points)), bytes_up, values, None)), values


def style_axes(axes: Axes, score: str) -> None:
    """Give axes the look of the report, and a vertical axis for `perplexity`, which is logarithmic, or an accuracy."""
    style_frame(axes)
    if score == "perplexity":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))


def _draw_line(axes: Axes, line: Line, x: Callable[[Curve], np.ndarray]) -> None:
    curve = line.mean
    if curve is None:
        return
    style = dict(line.style)
    if len(curve.mean) > MOST_MARKERS:
        style["markevery"] = (0, len(curve.mean) // 10)
    axes.plot(x(curve), curve.mean, markersize=3.6, zorder=3, **style)
    if curve.std is not None:
        low, high = _band(curve)
        axes.fill_between(x(curve), low, high, color=line.style["color"], alpha=0.17, linewidth=0, zorder=2)


def _band(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    std = 0.0 if curve.std is None else curve.std
    # No perplexity is below 1, where a band around a mean could end up on a logarithmic axis.
    floor = 1.0 if curve.mean.min() >= 1 else 0.0
    return np.maximum(curve.mean - std, floor), curve.mean + std


def _set_limits(axes: Axes, lines: list[Line], score: str, x: Callable[[Curve], np.ndarray]) -> None:
    """Fit the axes to the seeds that finished, so that one that diverged does not squeeze them; to all if none did."""
    bands = [_band(line.mean) for line in lines if line.mean]
    values = bands or [(seed, seed) for line in lines for _, seed in line.lost]
    low, high = min(float(part.min()) for part, _ in values), max(float(part.max()) for _, part in values)
    ends = [float(x(line.mean)[-1]) for line in lines if line.mean] or [
        float(xs[-1]) for line in lines for xs, _ in line.lost
    ]
    axes.set_xlim(0, max(ends) * 1.01 or 1)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if score != "perplexity":
        spare = 0.08 * (high - low) or 0.01
        axes.set_ylim(max(low - spare, 0), high + spare)
        return
    high = min(high, low * 1e9)
    fit_perplexities(axes, low, high)


def fit_perplexities(axes: Axes, low: float, high: float) -> None:
    """Fit a logarithmic vertical axis to perplexities from the lowest to the highest."""
    spare = max((high / low) ** 0.05, 1.01)
    axes.set_ylim(low / spare, high * spare)
    axes.yaxis.set_major_locator(
        ticker.LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)) if high / low > 6 else ticker.MaxNLocator(5)
    )


def _draw_lost(axes: Axes, line: Line) -> None:
    top = axes.get_ylim()[1]
    for xs, values in line.lost:
        axes.plot(xs, values, color=line.style["color"], linewidth=1, linestyle=":", zorder=2)
        end = min(xs[-1], axes.get_xlim()[1]), min(values[-1], top)
        axes.plot(*end, marker="X", color=line.style["color"], markersize=7, clip_on=False, zorder=6)


def _label_lines(axes: Axes, lines: list[Line], score: str, x: Callable[[Curve], np.ndarray]) -> None:
    """Name each line beside its end, apart from the others, with its final value."""
    label = format_perplexity if score == "perplexity" else format_percent
    ends: list[tuple[float, float, str, Line]] = []
    for line in lines:
        if line.mean is not None:
            value = float(line.mean.mean[-1])
            end = axes.transData.transform((float(x(line.mean)[-1]), value))
            across, height = axes.transAxes.inverted().transform(end)
            ends.append((float(height), float(across), f"{short_name(line.model)}  {label(value)}", line))
        else:
            reason = "no seed finished" if line.lost else "no held-out score"
            ends.append((1.0, 1.0, f"{short_name(line.model)}  {reason}", line))
    ends.sort(key=lambda entry: entry[0])
    beside = axes.transAxes
    for place, (height, across, text, line) in zip(spread_out([entry[0] for entry in ends]), ends, strict=True):
        if line.mean is not None:
            axes.plot([across, 1.03], [height, place], color=MUTED, lw=0.6, transform=beside, clip_on=False)
        sample = {name: value for name, value in line.style.items() if name != "marker"}
        axes.plot([1.03, 1.105], [place, place], transform=beside, clip_on=False, **sample)
        axes.text(1.12, place, text, va="center", color=INK, transform=beside, parse_math=False)


def spread_out(heights: Sequence[float]) -> list[float]:
    """Move labels apart that would lie on each other; heights ascend, from 0 to 1.

    They come at least `LABEL_GAP` apart, as near as may be and not above `TOP_LABEL`.
    """
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + LABEL_GAP) if places else height)
    limit = TOP_LABEL
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - LABEL_GAP
    return places
