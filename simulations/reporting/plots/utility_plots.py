"""Plots of what privacy costs: test perplexity against epsilon."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.simulations.plot_style import INK, MUTED, new_figure, short_name
from fedlm.simulations.reporting.plots.curves import fit_perplexities, style_axes
from fedlm.simulations.reporting.plots.line_styles import line_styles
from fedlm.simulations.reporting.privacy_summary import model_names
from fedlm.simulations.reporting.selection import ModelResult, Spread

MOST_TICKS = 6
CROSS_GAP = 0.08
"""Between the crosses of two lines that both have no score at an epsilon, as a share of the height."""
NO_NOISE_GAP, MOST_GAP = 2.0, 4.0
"""How far right of the largest epsilon the runs without noise lie, as a factor, at least and at most."""


class Series(NamedTuple):
    """Test perplexities of one line.

    Attributes:
      name: for the legend.
      style: of the line.
      points: (epsilon, score), ascending.
      lost: epsilons at which no run finished.
      without_noise: the score without noise, where there is one.
    """

    name: str
    style: dict[str, Any]
    points: list[tuple[float, Spread]]
    lost: list[float]
    without_noise: Spread | None


def can_draw_utility(models: Sequence[ModelResult]) -> bool:
    """Say whether scores at two levels of privacy or more, one of them with a finite epsilon, can be shown."""
    levels = {entry.privacy.level for entry in models if _is_drawn(entry)}
    return len(levels) > 1


def utility_plot(models: Sequence[ModelResult]) -> Figure:
    """Draw test perplexity against epsilon, a line a model and a panel a mechanism."""
    styles = line_styles([entry.model for entry in models if entry.label == models[0].label])

    panels = {
        mechanism: [
            _series(models, name, mechanism, _hollow_if_dashed(styles.get(name, {"color": MUTED})))
            for name in model_names(models)
        ]
        for mechanism in _mechanisms(models)
    }
    return _panels("Test perplexity by epsilon, for each mechanism (lower is better)", panels)


def _hollow_if_dashed(style: dict[str, Any]) -> dict[str, Any]:
    """Tell twins apart where only their markers are seen."""
    return style if style.get("linestyle", "-") == "-" else style | {"markerfacecolor": "none"}


def _is_drawn(entry: ModelResult) -> bool:
    known = entry.privacy.mechanism == "none" or (entry.privacy.private and entry.privacy.epsilon is not None)
    return known and entry.test("perplexity") is not None


def _mechanisms(models: Sequence[ModelResult]) -> list[str]:
    return list(dict.fromkeys(entry.privacy.mechanism for entry in models if entry.privacy.epsilon is not None))


def _series(models: Sequence[ModelResult], model: str, mechanism: str, style: dict[str, Any]) -> Series:
    points: list[tuple[float, Spread]] = []
    lost: list[float] = []
    without_noise = None
    for entry in models:
        epsilon, score = entry.privacy.epsilon, entry.test("perplexity")
        if entry.model != model or entry.privacy.mechanism not in (mechanism, "none"):
            continue
        if entry.privacy.mechanism == "none":
            without_noise = score
        elif epsilon is not None and score is None:
            lost.append(epsilon)
        elif epsilon is not None and score is not None:
            points.append((epsilon, score))
    return Series(short_name(model), style, sorted(points, key=lambda point: point[0]), lost, without_noise)


def _panels(title: str, drawn: dict[str, list[Series]]) -> Figure:
    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = new_figure(1.5 + 2.1 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    every = [series for of_panel in drawn.values() for series in of_panel]
    beyond = _beyond(every)
    for axes, (name, of_panel) in zip(panels, drawn.items(), strict=False):
        style_axes(axes, "perplexity")
        axes.set_ylabel("")
        axes.set_title(short_name(name), color=INK, fontsize=9.5, loc="left", parse_math=False)
        for number, series in enumerate(of_panel):
            _draw_series(axes, series, beyond, 0.97 - CROSS_GAP * number)
    for axes in panels[len(drawn) :]:
        axes.axis("off")
    for axes in panels[max(len(drawn) - columns, 0) : len(drawn)]:
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.set_xlabel("epsilon (smaller is more private)", color=INK, fontsize=9.5)
    _fit(panels[0], every, beyond)
    handles = {series.name: _sample(series) for series in every}
    figure.legend(
        handles=list(handles.values()),
        loc="outside lower center",
        ncols=3,
        handlelength=3,
        frameon=False,
        labelcolor=INK,
    )
    figure.suptitle(title, x=0.01, ha="left", color=INK, weight="bold", fontsize=11)
    figure.supylabel("test perplexity", color=INK, fontsize=9.5)
    return figure


def _epsilons(every: Sequence[Series]) -> list[float]:
    return sorted({epsilon for series in every for epsilon in (*(point[0] for point in series.points), *series.lost)})


def _beyond(every: Sequence[Series]) -> float:
    """Where runs without noise lie: as far right of the largest epsilon as that is of the next."""
    epsilons = _epsilons(every)
    step = epsilons[-1] / epsilons[-2] if len(epsilons) > 1 else NO_NOISE_GAP
    return epsilons[-1] * max(min(step, MOST_GAP), NO_NOISE_GAP)


def _draw_series(axes: Axes, series: Series, beyond: float, cross: float) -> None:
    points = series.points + ([(beyond, series.without_noise)] if series.without_noise else [])
    colour = series.style["color"]
    for epsilon, score in points:
        std = score.std or 0.0
        # No perplexity is below 1, where a bar could end up on a logarithmic axis.
        low = max(score.mean - std, 1.0) if score.mean >= 1 else score.mean
        axes.plot([epsilon, epsilon], [low, score.mean + std], color=colour, linewidth=1.2, zorder=2)
        axes.plot(epsilon, score.mean, markersize=5, zorder=3, **series.style | {"linestyle": ""})
    if series.points:
        xs, means = zip(*((epsilon, score.mean) for epsilon, score in series.points), strict=True)
        axes.plot(xs, means, zorder=3, **series.style | {"marker": ""})
    if series.without_noise:
        axes.axhline(series.without_noise.mean, color=colour, linewidth=0.9, linestyle=":", zorder=1)
    for epsilon in series.lost:
        axes.plot(epsilon, cross, "X", color=colour, markersize=7, clip_on=False, transform=axes.get_xaxis_transform())


def _fit(axes: Axes, every: Sequence[Series], beyond: float) -> None:
    scores = [score for series in every for _, score in series.points]
    scores += [series.without_noise for series in every if series.without_noise]
    means, highs = [score.mean for score in scores], [score.mean + (score.std or 0.0) for score in scores]
    lows = [max(score.mean - (score.std or 0.0), min(score.mean, 1.0)) for score in scores]
    low = min(value for value in (*lows, *means) if value > 0)
    fit_perplexities(axes, low, min(max(highs), low * 1e9))
    epsilons = _epsilons(every)
    shown = epsilons if len(epsilons) <= MOST_TICKS else epsilons[:: -(-len(epsilons) // MOST_TICKS)]
    ticks = {epsilon: rounded_up(epsilon) for epsilon in shown}
    if any(series.without_noise for series in every):
        ticks[beyond] = "no noise"
    axes.set_xscale("log")
    axes.set_xlim(epsilons[0] / 1.3, max(ticks) * 1.3)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _sample(series: Series) -> Line2D:
    return Line2D([], [], label=series.name, markersize=5, **series.style)
