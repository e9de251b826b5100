"""Pictures of what was measured: rounds, shares, private steps, noise, the recurrence."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.accelerator import goals
from benchmarks.accelerator.cells import JAX_PRIVACY, NOISE, OURS, PLAIN, RECURRENCE, ROUNDS
from benchmarks.accelerator.records import Results

OURS_COLOUR, BARE_COLOUR, PEER_COLOUR = "#0072b2", "#b0b0b0", "#e69f00"
PART_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#999999")


def draw(results: Results) -> dict[str, Figure]:
    """Draw a figure for each group that has results, by the name of its file."""
    figures = {
        "rounds": _rounds(results),
        "private_steps": _private(results),
        "noise_and_recurrence": _noise_and_recurrence(results),
    }
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for figure in drawn.values():
        if results.run["rehearsal"]:
            figure.text(
                0.5, 0.5, "REHEARSAL ON A CPU\nTINY SIZES", fontsize=34, color="#cc0000", alpha=0.18, rotation=18,
                ha="center", va="center", zorder=10,
            )  # fmt: skip
    return drawn


def _title(results: Results, what: str, between: str = ": ") -> str:
    found = results.run["found"]
    return f"{what}{between}{found['device_count']} x {found['device']}, JAX {found['jax']}"


def _rounds(results: Results) -> Figure | None:
    rounds, shares = results.measured(ROUNDS), goals.shares_of_rounds(results)
    if not (rounds or shares):
        return None
    below = 0.6 + 0.55 * len(shares) if shares else 0.0
    figure = Figure(figsize=(11, 1.2 + 0.34 * max(len(rounds), 2) + below), layout="constrained")
    heights = [max(len(rounds), 2), 1 + 1.6 * len(shares)] if shares else [1]
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    speed, roofline = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    names = list(rounds)
    bare = [rounds[name]["bare_steps_per_second"] for name in names]
    speed.barh(names, bare, height=0.8, color=BARE_COLOUR, label="a bare loop")
    ours = [rounds[name]["steps_per_second"] for name in names]
    bars = speed.barh(names, ours, height=0.45, color=OURS_COLOUR, label="rounds")
    speed.bar_label(bars, [f" {one:.3g} of {other:.3g}" for one, other in zip(ours, bare, strict=True)], fontsize=7)
    speed.set_xlim(0, 1.35 * max([*ours, *bare, 1e-9]))
    speed.set_title("local steps a second", fontsize=10)
    found = [goals.part_of_roofline(results, rounds[name], name.split(", ")[1]) for name in names]
    values = [100 * (part or 0.0) for part in found]
    bars = roofline.barh(names, values, height=0.6, color=OURS_COLOUR)
    roofline.bar_label(bars, ["" if part is None else f" {part:.1%}" for part in found], fontsize=7)
    roofline.axvline(100 * goals.ROOFLINE_GOAL, color="#d55e00", linewidth=1)
    roofline.set_xlim(0, max(100.0, 1.1 * max([*values, 0.0])))
    roofline.set_title(f"percent of the roofline (goal: {goals.ROOFLINE_GOAL:.0%})", fontsize=10)
    roofline.set_yticks([])
    drawn = [speed, roofline]
    if shares:
        drawn.append(figure.add_subplot(grid[1, :]))
        _draw_shares(drawn[-1], shares)
    for axes in drawn:
        _bare(axes)
        axes.invert_yaxis()
    if names:
        speed.legend(frameon=False, fontsize=7, loc="lower right")
        roofline.set_ylim(speed.get_ylim())
    figure.suptitle(_title(results, "Rounds"), fontsize=11)
    return figure


def _draw_shares(axes: Axes, shares: dict[str, dict[str, float]]) -> None:
    axes.set_title("where a round's time goes, percent", fontsize=10)
    axes.set_xlim(0, 100)
    left = np.zeros(len(shares))
    for colour, part in zip(PART_COLOURS, next(iter(shares.values())), strict=True):
        widths = np.array([100 * one[part] for one in shares.values()])
        bars = axes.barh(list(shares), widths, left=left, color=colour, height=0.55, label=part)
        axes.bar_label(
            bars, [f"{w:.1f}" if w >= 4 else "" for w in widths], label_type="center", fontsize=7, color="white"
        )
        left += widths
    axes.legend(frameon=False, fontsize=7, ncols=len(PART_COLOURS), loc="upper center", bbox_to_anchor=(0.5, -0.12))


def _private(results: Results) -> Figure | None:
    cases = goals.private_cases(results)
    if not cases:
        return None
    columns = min(3, len(cases))
    rows = -(-len(cases) // columns)
    figure = Figure(figsize=(1.5 + 3.4 * columns, 1.1 + 2.0 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    kinds = (PLAIN, *OURS, JAX_PRIVACY)
    for axes in panels:
        axes.set_visible(False)
    for index, ((name, case), axes) in enumerate(zip(cases.items(), panels, strict=False)):
        axes.set_visible(True)
        rates = [case[kind]["tokens_per_second"] if kind in case else 0.0 for kind in kinds]
        colours = [BARE_COLOUR, *[OURS_COLOUR] * len(OURS), PEER_COLOUR]
        bars = axes.barh(range(len(kinds)), rates, color=colours)
        labels = [_rate(results, name, case.get(kind)) for kind in kinds]
        axes.bar_label(bars, labels, padding=3, fontsize=7)
        axes.set_yticks(range(len(kinds)), kinds if index % columns == 0 else [], fontsize=8)
        axes.set_xlim(0, 1.75 * max(rates))
        axes.set_xticks([])
        axes.invert_yaxis()
        axes.set_title(name, fontsize=8)
        _bare(axes)
    # A single panel is narrow.
    figure.suptitle(_title(results, "Tokens a second of gradient steps, and MFU", "\n"), fontsize=10)
    return figure


def _rate(results: Results, name: str, measured: dict[str, Any] | None) -> str:
    if measured is None:
        return "not measured"
    mfu = goals.utilization(results, name, measured)
    return f"{measured['tokens_per_second']:.3g}" + ("" if mfu is None else f", {mfu:.0%}")


def _noise_and_recurrence(results: Results) -> Figure | None:
    noise, recurrence = results.measured(NOISE), results.measured(RECURRENCE)
    if not (noise or recurrence):
        return None
    figure = Figure(figsize=(12, 1.4 + 0.28 * max(len(noise), len(recurrence), 4)), layout="constrained")
    left, right = figure.subplots(1, 2)
    milliseconds = [1e3 * one["seconds_a_round"] for one in noise.values()]
    _bars(left, list(noise), milliseconds, "noise, ms a round (logarithmic)")
    if milliseconds:
        left.set_xscale("log")
        left.set_xlim(0.5 * min(milliseconds), 4 * max(milliseconds))
    steps = [1e3 * goals.seconds(one) for one in recurrence.values()]
    _bars(right, list(recurrence), steps, "a local step, ms; dark: the recurrent layer alone")
    layers = [1e3 * one["seconds_of_layer"]["median"] for one in recurrence.values()]
    right.barh(range(len(layers)), layers, height=0.35, color="#00456e")
    figure.suptitle(_title(results, "Noise and recurrence"), fontsize=11)
    return figure


def _bars(axes: Axes, names: list[str], values: list[float], title: str) -> None:
    bars = axes.barh(range(len(names)), values, color=OURS_COLOUR, height=0.7)
    axes.bar_label(bars, [f" {value:.3g}" for value in values], fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlim(0, 1.2 * max([*values, 1e-9]))
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
