"""The table and the plot of `against_transformers`."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

OURS, PEERS = "#0072b2", "#e69f00"


def table(name: str, measured: dict[str, Any]) -> Table:
    """Lay a model's numbers out for the terminal."""
    result = Table("prompts at once", "side", title=f"{name}: tokens a second")
    for heading in ("median", "from", "to", "fedlm: times as many"):
        result.add_column(heading, justify="right")
    for batch, numbers in measured["batches"].items():
        for side, rate in numbers["tokens_per_second"].items():
            ratio = numbers["ratio"] if side == numbers["best_of_transformers"] else None
            times = "" if ratio is None else f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
            result.add_row(str(batch), side, *(f"{rate[key]:.1f}" for key in ("median", "min", "max")), times)
    return result


def plot(models: dict[str, Any]) -> Figure:
    """Draw tokens a second of both sides, one panel a model."""
    figure = Figure(figsize=(1.6 + 3.2 * len(models), 2.8), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for index, (panel, (name, measured)) in enumerate(zip(panels, models.items(), strict=True)):
        _draw(panel, name, measured["batches"], labelled=index == 0)
    figure.suptitle("Tokens generated a second on a CPU: more is better", fontsize=11)
    return figure


def _draw(axes: Axes, name: str, batches: dict[Any, Any], labelled: bool) -> None:
    shown = {
        f"{label}, {batch} at once": (numbers["tokens_per_second"][side]["median"], colour)
        for batch, numbers in batches.items()
        for label, side, colour in (
            ("fedlm", "fedlm", OURS),
            ("transformers", numbers["best_of_transformers"], PEERS),
        )
    }
    values, colours = zip(*shown.values(), strict=True)
    bars = axes.barh(range(len(shown)), values, color=colours)
    axes.bar_label(bars, [f"{value:.0f}" for value in values], padding=3, fontsize=9)
    axes.set_yticks(range(len(shown)), list(shown) if labelled else [], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(values))
    axes.set_xticks([])
    axes.set_title(name, fontsize=10)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
