"""The table and the plot of `against_peers`."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

LABELS = {
    "plain": "fedlm, non-private",
    "bookkeeping": "fedlm, bookkeeping",
    "ghost": "fedlm, ghost",
    "vmap": "fedlm, vmap",
    "jax_privacy": "jax-privacy",
    "torch_plain": "PyTorch, non-private",
    "opacus_per_sample": "Opacus, per sample",
    "opacus_ghost": "Opacus, ghost",
}
OURS, BARE, PEERS = "#0072b2", "#b0b0b0", "#e69f00"
COLUMNS = 4


def table(case: dict[str, Any]) -> Table:
    """Lay the numbers of a model and a shape out for the terminal."""
    result = Table(title=title(case))
    result.add_column("step", no_wrap=True)
    for heading in (
        "at a time",
        "devices",
        "ms",
        "over non-private",
        "over jax-privacy",
        "over PyTorch",
        "MiB",
        "memory",
    ):
        result.add_column(heading, justify="right")
    for kind, label in LABELS.items():
        if kind in case["best"]:
            result.add_row(label, *_cells(case, kind))
    return result


def title(case: dict[str, Any]) -> str:
    """Name a case."""
    return f"{case['model']}, {case['examples']} x {case['length']}"


def _cells(case: dict[str, Any], kind: str) -> list[str]:
    best, memory = case["best"][kind], case["memory_over_plain"].get(kind, {})
    return [
        f"{best['microbatch']}",
        f"{best['devices'] or ''}",
        f"{1e3 * best['median']:.0f}",
        *(_ratio(case[key].get(kind)) for key in ("over_plain", "over_jax_privacy", "over_torch_plain")),
        f"{best['memory_mib']:.1f}" if "memory_mib" in best else "",
        f"{memory['same_setting']:.2f}" if "same_setting" in memory else "",
    ]


def _ratio(ratio: dict[str, float] | None) -> str:
    return "" if ratio is None else f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def plot(cases: list[dict[str, Any]]) -> Figure:
    """Draw each step's time over the non-private one's, a panel for each case."""
    columns = min(COLUMNS, max(1, len(cases)))
    rows = math.ceil(max(1, len(cases)) / columns)
    present = {kind for case in cases for kind in case["best"]}
    kinds = [kind for kind in LABELS if kind in present]
    size = (2.2 + 2.6 * columns, 0.6 + (0.7 + 0.26 * len(kinds)) * rows)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for index, panel in enumerate(panels):
        panel.set_visible(index < len(cases))
    for index, case in enumerate(cases):
        _draw(panels[index], case, kinds, labelled=index % columns == 0)
    figure.suptitle("Time of a gradient step over fedlm's non-private one (less is better)", fontsize=11)
    return figure


def _draw(axes: Axes, case: dict[str, Any], kinds: list[str], labelled: bool) -> None:
    best = case["best"]
    unit = best["plain"]["median"] if "plain" in best else 1.0
    values = [best[kind]["median"] / unit if kind in best else 0.0 for kind in kinds]
    bars = axes.barh(range(len(kinds)), values, color=[_colour(kind) for kind in kinds])
    axes.bar_label(bars, [f"{value:.2f}" if value else "not run" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(kinds)), [LABELS[kind] for kind in kinds] if labelled else [], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max([*values, 1e-9]))
    axes.set_xticks([])
    axes.set_title(title(case), fontsize=9)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _colour(kind: str) -> str:
    return BARE if kind == "plain" else OURS if LABELS[kind].startswith("fedlm") else PEERS
