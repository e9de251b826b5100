"""A picture an axis: perplexity, the gap to the twin with the line through it, and curves."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.architectures.axes.gaps import (
    SMOOTHED,
    gaps_along,
    gaps_by_seed,
    line_through,
    mean_curve,
    means_along,
    pairs_of,
    score,
)
from benchmarks.architectures.axes.points import Axis, published_gap, value_words
from benchmarks.architectures.axes.records import Records

TITLES = {
    "cifg": "CIFG",
    "si_cifg_published": "SI-CIFG as published",
    "si_cifg_unit_rms": "SI-CIFG (output normalised)",
    "si_cifg": "SI-CIFG (RMSNorm with gain)",
    "cifg_rms_norm": "CIFG (RMSNorm with gain)",
    "cifg_unit_rms": "CIFG (output normalised)",
    "cifg_layer_norm": "CIFG (layer norm within)",
    "transformer": "Transformer",
    "si_transformer": "SI-Transformer",
    "transformer_rms_norm": "Transformer (last norm RMSNorm)",
    "si_transformer_rms_norm": "SI-Transformer (last norm RMSNorm)",
}
_COLOURS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def pair_words(pair: tuple[str, str]) -> str:
    """Name a model and the one that it is compared with."""
    return f"{TITLES[pair[0]]} against {TITLES[pair[1]]}"


def draw(records: Records, axis: Axis) -> Figure:
    """Draw what is there of an axis: three panels."""
    figure = Figure(figsize=(17, 5.8), layout="constrained")
    panels = figure.subplots(1, 3)
    _draw_perplexities(panels[0], records, axis)
    _draw_gaps(panels[1], records, axis)
    _draw_curves(panels[2], records, axis)
    for axes in panels:
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14))
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _places(axes: Axes, axis: Axis) -> list[float]:
    """Lay an axis' points out; where they are numbers, in their logarithm."""
    if not _is_numeric(axis):
        names = [value_words(point.value) for point in axis.points]
        axes.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names], fontsize=8)
        return list(range(len(names)))
    values = [float(point.value) for point in axis.points]
    ticks = sorted({*values, axis.published or values[0]})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [value_words(value) for value in ticks])
    axes.minorticks_off()
    return values


def _is_numeric(axis: Axis) -> bool:
    return not any(isinstance(point.value, str) for point in axis.points)


def _style(axis: Axis) -> str:
    """Join means where the axis has numbers; else mark them."""
    return "-" if _is_numeric(axis) else "_"


def _draw_perplexities(axes: Axes, records: Records, axis: Axis) -> None:
    places = _places(axes, axis)
    for number, model in enumerate(axis.models):
        found = [score(records, point, model) for point in axis.points]
        by_place = [
            (place, {seed: math.exp(loss) for seed, loss in one.test.items() if loss < math.inf} if one else {})
            for place, one in zip(places, found, strict=True)
        ]
        _draw_seeds(axes, axis, by_place, _COLOURS[number % len(_COLOURS)], TITLES[model])
    _logarithmic(axes)
    axes.set_xlabel(axis.title)
    axes.set_title(
        "Test perplexity at the selected rates; dots are seeds,\nlines means of those that all places have",
        loc="left",
        fontsize=10,
    )


def _draw_seeds(
    axes: Axes, axis: Axis, by_place: list[tuple[float, dict[int, float]]], colour: str, label: str
) -> None:
    """Draw a dot a seed and, of the seeds that all places have, the mean: of others it would be another's."""
    for place, by_seed in by_place:
        axes.plot([place] * len(by_seed), list(by_seed.values()), "o", color=colour, markersize=4, alpha=0.6)
    means = means_along(by_place)
    axes.plot(*zip(*means, strict=True) if means else ([], []), _style(axis), markersize=14, color=colour, label=label)


def _draw_gaps(axes: Axes, records: Records, axis: Axis) -> None:
    places = _places(axes, axis)
    axes.axhline(0, color="black", linewidth=0.8)
    coloured = [(pair, _COLOURS[1 + number % (len(_COLOURS) - 1)]) for number, pair in enumerate(pairs_of(axis))]
    for (model, twin), colour in coloured:
        found = [gaps_by_seed(records, point, model, twin) for point in axis.points]
        label = pair_words((model, twin))
        by_place = [
            (place, {seed: 100 * value for seed, value in gaps.items()})
            for place, gaps in zip(places, found, strict=True)
        ]
        _draw_seeds(axes, axis, by_place, colour, label)
    published = {published_gap(*pair) for pair in pairs_of(axis)} - {None}
    for one in published:
        axes.axhline(100 * one, color="grey", linestyle=":", label=f"published: {100 * one:.1f} %")
    lines = [(line, colour) for pair, colour in coloured if (line := _line(records, axis, pair)) is not None]
    for (values, middle, _), colour in lines:
        axes.plot(values, middle, "--", color=colour, linewidth=0.8)
    # Lines of few points have intervals that would leave no room for the points.
    limits = axes.get_ylim()
    for (values, middle, half), colour in lines:
        axes.fill_between(values, middle - half, middle + half, color=colour, alpha=0.08, linewidth=0)
    axes.set_ylim(limits)
    axes.set_xlabel(axis.title)
    axes.set_title(
        "Perplexity above the twin's, per cent, seed by seed;\ndashed: the straight line through the means",
        loc="left",
        fontsize=10,
    )


def _line(records: Records, axis: Axis, pair: tuple[str, str]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Fit the line through a pair's gaps: values of the axis, gaps in per cent there, and half of their intervals."""
    gaps = gaps_along(records, axis, *pair)
    if axis.published is None or not gaps:
        return None
    values = np.geomspace(min(value for value, _ in gaps), max(axis.published, *(value for value, _ in gaps)), 30)
    lines = [line for value in values if (line := line_through(gaps, value)) is not None]
    if len(lines) < len(values):
        return None
    middle, half = 100 * np.array([(line.value, line.half_width) for line in lines]).T
    return values, middle, half


def _draw_curves(axes: Axes, records: Records, axis: Axis) -> None:
    point = next(
        (point for point in reversed(axis.points) if any(mean_curve(records, point, one)[0] for one in axis.models)),
        axis.points[-1],
    )
    for number, model in enumerate(axis.models):
        rounds, losses = mean_curve(records, point, model)
        if rounds:
            perplexities = [math.exp(loss) for loss in losses]
            axes.plot(rounds, perplexities, color=_COLOURS[number % len(_COLOURS)], label=TITLES[model])
    _logarithmic(axes)
    axes.set_xlabel("rounds done")
    title = (
        f"Held-out perplexity, mean over seeds and the last {SMOOTHED} rounds\n{axis.title}: {value_words(point.value)}"
    )
    axes.set_title(title, loc="left", fontsize=10)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
