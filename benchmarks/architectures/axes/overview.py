"""All gaps on one picture, and in one table: those at selected rates, and those at the same rates for both models."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.architectures.axes.gaps import Gap, Spread, gap, gap_at_rates, pairs_of
from benchmarks.architectures.axes.plots import pair_words
from benchmarks.architectures.axes.points import PAIRS, SEEDS, Axis, Point, Setting, published_gap, value_words
from benchmarks.architectures.axes.records import Records

_BOUND = 26.0  # per cent, at which intervals leave the picture
_TEST, _HELDOUT = "#0072b2", "#e69f00"


class Place(NamedTuple):
    """A gap, and where on an axis it is, in words."""

    words: str
    gap: Gap


def places(records: Records, axes: dict[str, Axis], pair: tuple[str, str]) -> list[Place]:
    """List a pair's gaps at selected rates, each training's but once: that of the preset is on most axes."""
    seen: set[tuple[Setting, int]] = set()
    found = []
    for axis in axes.values():
        for point in axis.points if pair in pairs_of(axis) else ():
            one = gap(records, point, *pair)
            if one is not None and (point.setting, point.rounds) not in seen:
                seen.add((point.setting, point.rounds))
                found.append(Place(_place_words(axis, point), one))
    return found


def _place_words(axis: Axis, point: Point) -> str:
    if (point.setting, point.rounds) == (Setting(), Point.rounds):
        return "the preset"
    return f"{axis.title}: {value_words(point.value)}"


def draw_overview(records: Records, axes: dict[str, Axis]) -> Figure | None:
    """Draw every gap with its intervals on test and on held-out clients; None where there is none."""
    groups = [(pair, found) for pair in PAIRS if (found := places(records, axes, pair))]
    if not groups:
        return None
    number = sum(len(found) + 1.2 for _, found in groups)
    figure = Figure(figsize=(11, 1.4 + 0.24 * number), layout="constrained")
    panel = figure.subplots()
    labels, row = {}, 0.0
    for pair, found in groups:
        labels[row] = pair_words(pair)
        _draw_published(panel, pair, row, len(found))
        for place in found:
            row += 1
            labels[row] = place.words
            for spread, away, colour in ((place.gap.test, -0.13, _TEST), (place.gap.heldout, 0.13, _HELDOUT)):
                _draw_spread(panel, spread, row + away, colour)
        row += 1.2
    panel.set_yticks(list(labels), list(labels.values()), fontsize=8)
    for text in panel.get_yticklabels():
        if " against " in text.get_text():
            text.set_fontweight("bold")
    panel.set_ylim(row - 0.2, -0.8)
    panel.set_xlim(-_BOUND, _BOUND)
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_xlabel("perplexity above the twin's, per cent: left of 0 the first is better")
    for label, colour in (("test clients", _TEST), ("held-out clients", _HELDOUT)):
        panel.plot([], [], "o-", color=colour, label=f"{label}, with the 95 % interval of three seeds")
    panel.plot([], [], "o", color="grey", fillstyle="none", label="one seed alone")
    panel.plot([], [], ":", color="grey", label="published")
    panel.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=2)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x", alpha=0.3)
    return figure


def _draw_published(panel: Axes, pair: tuple[str, str], row: float, number: int) -> None:
    published = published_gap(*pair)
    if published is not None:
        panel.plot([100 * published] * 2, [row + 0.5, row + number + 0.5], ":", color="grey")


def _draw_spread(panel: Axes, spread: Spread, row: float, colour: str) -> None:
    mean, half = 100 * spread.mean, 100 * spread.half_width
    several = not math.isinf(half)
    if several:
        panel.plot([mean - half, mean + half], [row, row], "-", color=colour, linewidth=1.5)
    panel.plot([mean], [row], "o", color=colour, markersize=4, fillstyle="full" if several else "none")


AT_RATES = ((2.0, 0.003), (2.0, 0.01), (2.0, 0.03))
"""Client and server rates at which both models of a pair are compared."""


def gaps_at_equal_rates(records: Records, axes: dict[str, Axis]) -> Iterator[tuple[Place, tuple[float, float], str]]:
    """Go through the gaps at the same rates for both models, of all seeds: where, the rates and the pair's names."""
    seen: set[tuple[Setting, int, tuple[str, str]]] = set()
    for axis in axes.values():
        for point in axis.points:
            for pair in pairs_of(axis):
                if (point.setting, point.rounds, pair) in seen:
                    continue
                seen.add((point.setting, point.rounds, pair))
                for rates in AT_RATES:
                    found = gap_at_rates(records, point, *pair, rates)
                    if found is not None and len(found.test.values) == len(SEEDS):
                        yield (
                            Place(_place_words(axis, point), found),
                            rates,
                            pair_words(pair),
                        )
