"""A token store in one picture: how much clients have, how long examples are, and what the vocabulary covers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnchoredText
from numpy.typing import NDArray

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.simulations.data.describing.description import (
    TRUNCATION_LENGTHS,
    SplitCounts,
    coverage_by_rank,
    truncated_share,
)
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.plot_style import FAMILIES, INK, MUTED, new_figure, style_frame, to_png

WIDTH, HEIGHT = 10.0, 7.2
LINE_WIDTH, SMALL = 1.6, 9
SHOWN_SHARE = 0.995
"""Of the examples; the few longer ones would squeeze the others."""
LONG = 200
"""Lengths beyond this are drawn on a logarithmic axis, or the cuts would lie on each other."""


def write_plot(path: Path, store: TokenStore, counts: Mapping[str, SplitCounts]) -> None:
    """Draw a store into a PNG file, which appears whole or not at all; raises DiskError where it cannot be written."""
    write_atomically(path, to_png(draw_store(store, counts)))


def draw_store(store: TokenStore, counts: Mapping[str, SplitCounts]) -> Figure:
    """Draw a store: clients by examples, examples by length, coverage by rank, clients by tokens."""
    figure = new_figure(HEIGHT)
    figure.set_figwidth(WIDTH)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1, hspace=0.04)
    panels = figure.subplots(2, 2).ravel().tolist()
    shown = {name: split for name, split in counts.items() if split.lengths.sum()}
    colours = dict(zip(counts, FAMILIES, strict=False))
    examples = {name: split.examples_per_client for name, split in shown.items()}
    tokens = {name: split.tokens_per_client for name, split in shown.items()}
    _draw_clients(panels[0], "Clients by number of examples", "examples of a client", shown=examples, colours=colours)
    _draw_lengths(panels[1], shown, colours)
    _draw_coverage(panels[2], shown, colours)
    _draw_clients(panels[3], "Clients by number of tokens", "tokens of a client", shown=tokens, colours=colours)
    for axes in panels:
        style_frame(axes)
        if not shown:
            axes.text(0.5, 0.5, "no examples", ha="center", color=MUTED, transform=axes.transAxes)
            axes.set(xticks=[], yticks=[])
    title = f"{store.path.resolve().name}: text from {store.source}, {store.vocabulary_size:,} tokens in the vocabulary"
    figure.suptitle(title, x=0.01, ha="left", color=INK, parse_math=False)
    if shown:
        names = {name: f"{name}: {len(split.examples_per_client):,} clients" for name, split in shown.items()}
        handles = [panels[0].plot([], [], color=colours[name], linewidth=3)[0] for name in shown]
        figure.legend(handles, list(names.values()), loc="outside lower center", ncols=3, frameon=False, labelcolor=INK)
    return figure


def _draw_clients(
    axes: Axes, title: str, label: str, *, shown: Mapping[str, NDArray[np.int64]], colours: Mapping[str, str]
) -> None:
    """Count clients in steps from one power of two to the next, by a number of each client of a split."""
    _label(axes, title, f"{label}, each step twice as many", "clients")
    if not shown:
        return
    most = max(int(numbers.max()) for numbers in shown.values())
    edges = 2 ** np.arange(most.bit_length() + 1)
    axes.set(xscale="log", yscale="log")
    for name, numbers in shown.items():
        heights = np.histogram(numbers, edges)[0]
        # Nothing can stand on a logarithmic axis at 0; a step without clients reaches below it.
        axes.stairs(np.maximum(heights, 0.1), edges, baseline=0.1, color=colours[name], linewidth=LINE_WIDTH)
    axes.set_ylim(bottom=0.7)
    _plain_numbers(axes, "both")


def _draw_lengths(axes: Axes, shown: Mapping[str, SplitCounts], colours: Mapping[str, str]) -> None:
    """Draw, for each length, the share of examples that are as long; a cut at that length takes something off them."""
    _label(axes, "Examples that a cut shortens", "length of the cut in tokens", "share of the split's examples")
    axes.yaxis.set_major_formatter(_percent)
    if not shown:
        return
    total = np.zeros(max(len(split.lengths) for split in shown.values()), np.int64)
    for split in shown.values():
        total[: len(split.lengths)] += split.lengths
    cumulative = np.cumsum(total)
    longest = int(np.searchsorted(cumulative, SHOWN_SHARE * cumulative[-1])) + 1
    for name, split in shown.items():
        longer = np.cumsum(split.lengths[::-1])[::-1] / split.lengths.sum()
        axes.plot(np.arange(len(longer)), longer, color=colours[name], linewidth=LINE_WIDTH)
    axes.set_ylim(0, 1.04)
    if longest > LONG:
        axes.set(xscale="log", xlim=(1, longest))
        _plain_numbers(axes, "x")
    else:
        axes.set_xlim(0, max(longest, TRUNCATION_LENGTHS[-1] + 10))
    name, split = next(iter(shown.items()))
    shares = [truncated_share(split, cut) or 0.0 for cut in TRUNCATION_LENGTHS]
    axes.plot(TRUNCATION_LENGTHS, shares, "o", color=colours[name], markersize=5)
    axes.vlines(TRUNCATION_LENGTHS, 0, shares, colors=MUTED, linewidth=0.9, linestyles=(0, (3, 3)), zorder=1)
    rows = [f"{name} cut at {cut}: {100 * share:.1f} %" for cut, share in zip(TRUNCATION_LENGTHS, shares, strict=True)]
    _add_note(axes, "\n".join(rows), "lower left" if longest > LONG else "upper right")


def _draw_coverage(axes: Axes, shown: Mapping[str, SplitCounts], colours: Mapping[str, str]) -> None:
    _label(
        axes,
        "What the vocabulary covers",
        "entries of the vocabulary, most frequent first",
        "share of the split's tokens",
    )
    if not shown:
        return
    axes.set_xscale("log")
    for name, split in shown.items():
        covered = coverage_by_rank(split)
        ranks = np.unique(np.geomspace(1, len(covered), 400).astype(int))
        axes.plot(ranks, covered[ranks - 1], color=colours[name], linewidth=LINE_WIDTH)
    entries, final = len(covered), [coverage_by_rank(split)[-1] for split in shown.values()]
    axes.set_xlim(1, entries)
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(_percent)
    text = "\n".join(f"{name}: {100 * share:.2f} % in all" for name, share in zip(shown, final, strict=True))
    _add_note(axes, text, "lower right")
    _plain_numbers(axes, "x")


def _percent(share: float, place: object = None) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def _label(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, loc="left", color=INK, weight="bold", fontsize=11)
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)


def _add_note(axes: Axes, text: str, corner: str) -> None:
    look = {"color": INK, "fontsize": SMALL, "backgroundcolor": "white"}
    axes.add_artist(AnchoredText(text, loc=corner, frameon=False, prop=look))


def _plain_numbers(axes: Axes, which: str) -> None:
    for name in ("x", "y") if which == "both" else (which,):
        axis = getattr(axes, f"{name}axis")
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_minor_formatter(ticker.NullFormatter())
        low, high = axis.get_view_interval()
        if high < 100 * low:
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
