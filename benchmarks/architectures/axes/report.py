"""The report: verdicts, tables and a picture an axis, as a page of Markdown, of whatever has been trained."""

import math
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.architectures.axes.gaps import (
    CONFIDENCE,
    MISSING,
    Gap,
    Line,
    Spread,
    gap,
    gaps_along,
    is_complete,
    left_at,
    line_through,
    pairs_of,
    score,
)
from benchmarks.architectures.axes.overview import draw_overview, gaps_at_equal_rates
from benchmarks.architectures.axes.plots import TITLES, draw, pair_words
from benchmarks.architectures.axes.points import Axis, published_gap, value_words, window
from benchmarks.architectures.axes.records import Records
from benchmarks.architectures.axes.selection import selection_rounds
from fedlm.fl_core.atomic_files import write_atomically

REPORT = "axes.md"
OVERVIEW = "axes_overview.png"


def write_report(records: Records, axes: dict[str, Axis], folder: Path) -> Path:
    """Write the page and a picture for each axis that is begun; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = {name: axis for name, axis in axes.items() if _begun(records, axis, axes)}
    for name, axis in begun.items():
        _save(draw(records, axis), folder / f"axes_{name}.png")
    overview = draw_overview(records, begun)
    if overview is not None:
        _save(overview, folder / OVERVIEW)
    path = folder / REPORT
    write_atomically(path, "\n\n".join(_sections(records, axes, begun)) + "\n")
    return path


def _save(figure: Figure, path: Path) -> None:
    beside = path.with_suffix(".partial.png")
    figure.savefig(beside, dpi=100)
    beside.replace(path)


def _begun(records: Records, axis: Axis, axes: dict[str, Axis]) -> bool:
    """Say whether there is something at two points at least, of which most axes share the one that is the preset, or of
    a model that no other axis has."""
    others = {model for other in axes.values() if other is not axis for model in other.models}
    if any(score(records, point, model) for point in axis.points for model in axis.models if model not in others):
        return True
    reached = sum(any(score(records, point, model) for model in axis.models) for point in axis.points)
    return reached >= min(2, len(axis.points))


def _sections(records: Records, axes: dict[str, Axis], begun: dict[str, Axis]) -> list[str]:
    absent = [name for name in axes if name not in begun]
    partial = [name for name, axis in begun.items() if not is_complete(records, axis)]
    sections = [
        "# From our setting towards the published one",
        "Each axis varies one thing of the preset `small`: 0.4 M parameters, 20 clients a round, 60 rounds, local "
        "gradients clipped to a norm of 1, Stack Exchange, 4,096 tokens. At every point each model has the client and "
        "server rate with the lowest held-out loss in the end, with the first seed: one client rate for each server "
        "rate goes on after a third of the rounds. A perplexity is that of the "
        "mean loss on test clients over the last rounds, as many as the tables say. A gap is by how much it is above "
        "that of the standard twin with the same seed; below 0 the scale-invariant model is better. Intervals are of "
        f"{100 * CONFIDENCE:.0f} per cent, by Student's distribution over seeds, not over clients, of which a few have "
        "most of what is scored: a model is ahead, or behind, where the gap's interval leaves out 0 on test clients "
        "and on held-out ones alike.",
        _what_is_missing(absent, partial),
    ]
    if begun:
        sections += [
            "## Verdicts",
            "The line is a straight one through the points' gaps, means over the seeds that all of them have, against "
            "the logarithm of the axis' value. Its interval is by how much the points differ from a line, with two "
            "degrees of freedom fewer than points: of three it says little. Where the published value is beyond the "
            "points it is an extrapolation, and the interval is not of the assumption that it goes on so far.",
            f"![Every gap, with its interval]({OVERVIEW})",
            _verdicts(records, begun),
            "## The same rates for both",
            "Gaps of all seeds where both models have the same client and server rate, whichever is best for either.",
            _at_equal_rates(records, begun),
        ]
    for name, axis in begun.items():
        sections += [
            f"## {axis.title[0].upper()}{axis.title[1:]}",
            f"![Perplexity, gap and curves along the axis {name}](axes_{name}.png)",
            _scores(records, axis),
            _gaps(records, axis),
            _selection(axis),
        ]
    return [section for section in sections if section]


def _what_is_missing(absent: list[str], partial: list[str]) -> str:
    lines = []
    for what, names in (("Nothing is there yet", absent), ("Trainings are missing", partial)):
        if names:
            commands = f"`python -m benchmarks.architectures.axes --axis {' '.join(names)}`"
            lines.append(f"**{what} of: {', '.join(names)}** ({commands}).")
    return " ".join(lines) or "All trainings have ended."


def table(head: list[str], rows: list[list[str]]) -> str:
    """Make a table of Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def _verdicts(records: Records, axes: dict[str, Axis]) -> str:
    rows = []
    for axis in axes.values():
        for model, twin in pairs_of(axis):
            found = [(point, gap(records, point, model, twin)) for point in axis.points]
            known = [(point, one) for point, one in found if one is not None]
            if len(known) < min(2, len(axis.points)):
                continue
            first, last = known[0], known[-1]
            published = published_gap(model, twin)
            along = gaps_along(records, axis, model, twin)
            line = line_through(along, axis.published) if axis.published else None
            rows.append(
                [
                    axis.title,
                    pair_words((model, twin)),
                    f"{value_words(first[0].value)}: {gap_words(first[1])}",
                    f"{value_words(last[0].value)}: {gap_words(last[1])}",
                    "" if line is None else f"{100 * line.slope:+.1f} ± {100 * line.slope_half_width:.1f}",
                    ""
                    if line is None
                    else f"{value_words(line.at)}: {100 * line.value:+.1f} ± {100 * line.half_width:.1f}",
                    "" if published is None else f"{100 * published:+.1f}",
                    last[1].verdict if line is None else f"{last[1].verdict}; {_how(line, along)} {line.verdict}",
                ]
            )
    head = [
        "axis",
        "pair",
        "gap at first, %",
        "gap at last, %",
        "by doubling",
        "line at the published value",
        "published",
        "verdict",
    ]
    return table(head, rows)


def _at_equal_rates(records: Records, axes: dict[str, Axis]) -> str:
    rows = [
        [place.words, pair, f"{rates[0]:g}, {rates[1]:g}", gap_words(place.gap), place.gap.verdict]
        for place, rates, pair in gaps_at_equal_rates(records, axes)
    ]
    return table(["where", "pair", "rates", "gap, %", "verdict"], rows)


def _how(line: Line, along: list[tuple[float, float]]) -> str:
    return "extrapolated" if line.at > max(value for value, _ in along) else "on the line"


def gap_words(found: Gap) -> str:
    """Say a gap in per cent, on test clients and on held-out ones, with its intervals where there are such."""
    return f"{_spread_words(found.test)} (held-out {_spread_words(found.heldout)})"


def _spread_words(found: Spread) -> str:
    half = "" if math.isinf(found.half_width) else f" ± {100 * found.half_width:.1f}"
    return f"{100 * found.mean:+.1f}{half}"


def _scores(records: Records, axis: Axis) -> str:
    rows = []
    for point in axis.points:
        entropy = records.about["data"].get(point.setting.data, {}).get("entropy")
        for model in axis.models:
            found = score(records, point, model)
            missing = " (trainings missing)" if left_at(records, point, model) else ""
            if found is None:
                rows.append([value_words(point.value), TITLES[model], MISSING, *[""] * 5])
                continue
            test = found.perplexity()
            above = f" ({sum(found.test.values()) / len(found.test) - entropy:.3f})" if entropy and test else ""
            edge = " (edge)" if found.at_edge else ""
            rows.append(
                [
                    value_words(point.value),
                    TITLES[model],
                    spread_words(test) + above + missing,
                    spread_words(found.perplexity("heldout")),
                    f"{100 * sum(found.accuracy.values()) / len(found.accuracy):.2f}",
                    f"{found.rates[0]:g}, {found.rates[1]:g}{edge}",
                    str(found.diverged),
                    f"{window(point.rounds)} of {point.rounds}",
                ]
            )
    head = [axis.title, "model", "test perplexity", "held-out", "accuracy, %", "rates", "diverged", "rounds averaged"]
    note = ""
    if any(records.about["data"].get(point.setting.data, {}).get("entropy") for point in axis.points):
        note = "\n\nIn brackets: nats a word above the entropy of the made-up text."
    return table(head, rows) + note


def spread_words(found: Spread | None) -> str:
    """Say mean and standard deviation over seeds, "diverged" where there is none."""
    if found is None:
        return "diverged"
    return f"{found.mean:.1f} ± {found.deviation:.1f}" if len(found.values) > 1 else f"{found.mean:.1f}"


def _gaps(records: Records, axis: Axis) -> str:
    pairs = pairs_of(axis)
    if not pairs:
        return ""
    rows = []
    for model, twin in pairs:
        found = [gap(records, point, model, twin) for point in axis.points]
        mixed = len({len(one.test.values) for one in found if one is not None}) > 1
        left = [
            " (trainings missing)" if left_at(records, point, model) or left_at(records, point, twin) else ""
            for point in axis.points
        ]
        cells = [
            MISSING if one is None else f"{gap_words(one)}: {_judged_words(one, mixed)}{unfinished}"
            for one, unfinished in zip(found, left, strict=True)
        ]
        rows.append([pair_words((model, twin)), *cells])
    return table(["gap, %", *(value_words(point.value) for point in axis.points)], rows)


def _judged_words(found: Gap, with_first: bool) -> str:
    """Say what a gap decides, with that of the first seed where other points have that alone."""
    seeds = found.test.values
    return found.verdict + (f"; first seed {100 * seeds[0]:+.1f}" if with_first and len(seeds) > 1 else "")


def _selection(axis: Axis) -> str:
    costs = [selection_rounds(point) for point in axis.points]
    selecting, grid = (sum(column) for column in zip(*costs, strict=True))
    return (
        f"Selecting rates takes {selecting / len(axis.points):.0f} rounds a model and point on average; a whole grid "
        f"would take {grid / len(axis.points):.0f}. Rates that are marked are the least or the largest of those "
        "that there were, so that a larger grid may move them."
    )
