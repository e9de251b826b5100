"""Heat maps of how each model took each combination of learning rates."""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedlm.simulations.plot_style import EMPTY, INK, MUTED, new_figure, short_name
from fedlm.simulations.reporting.formatting import format_perplexity
from fedlm.simulations.reporting.selection import Group, ModelResult

MOST_RATES = 5
"""Client learning rates that fit a panel of half the width."""
CELL = 0.9
COLOURS = 32


def rate_map_plot(models: Sequence[ModelResult]) -> Figure:
    """Draw a heat map a model: mean final held-out perplexity over client and server learning rates."""
    groups = [group for entry in models for group in entry.groups]
    clients = sorted({group.client_learning_rate for group in groups})
    servers = sorted({group.server_learning_rate for group in groups})
    columns = min(2 if len(clients) <= MOST_RATES else 1, len(models))
    rows = -(-len(models) // columns)
    figure = new_figure(1.45 + rows * (0.35 + 0.62 * len(servers)))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    norm, colours = _colour_scale(groups), matplotlib.colormaps["viridis"].resampled(COLOURS)
    for entry, axes in zip(models, panels, strict=False):
        _draw_panel(axes, entry, clients=clients, servers=servers, norm=norm, colours=colours)
    for axes in panels[len(models) :]:
        axes.axis("off")
    for axes in panels[-columns:]:
        axes.set_xlabel("client learning rate", color=INK)
        axes.xaxis.set_visible(True)
    title = "Final held-out perplexity by learning rates"
    figure.suptitle(title, x=0.01, ha="left", color=INK, weight="bold", fontsize=11)
    figure.supylabel("server learning rate", color=INK, fontsize=9.5)
    if norm is not None:
        _draw_scale(figure, list(panels), norm, colours)
    return figure


def _colour_scale(groups: Sequence[Group]) -> LogNorm | None:
    means = [spread.mean for group in groups if (spread := group.scores("heldout_perplexity"))]
    means = [mean for mean in means if mean > 0]
    if not means:
        return None
    low, high = min(means), max(means)
    return LogNorm(low, high) if high > 1.001 * low else LogNorm(low / 1.05, high * 1.05)


def _draw_panel(
    axes: Axes,
    entry: ModelResult,
    *,
    clients: list[float],
    servers: list[float],
    norm: LogNorm | None,
    colours: Colormap,
) -> None:
    axes.set_title(short_name(entry.model), color=INK, fontsize=9.5, parse_math=False)
    axes.set(xlim=(-0.56, len(clients) - 0.44), ylim=(-0.56, len(servers) - 0.44))
    axes.set_xticks(range(len(clients)), [f"{rate:g}" for rate in clients])
    axes.set_yticks(range(len(servers)), [f"{rate:g}" for rate in servers])
    axes.tick_params(length=0, labelcolor=INK, labelsize=9)
    axes.spines[:].set_visible(False)
    for group in entry.groups:
        column, row = clients.index(group.client_learning_rate), servers.index(group.server_learning_rate)
        _draw_cell(axes, group, column, row, norm=norm, colours=colours, narrow=len(clients) > 2)
        if group is entry.selected:
            edge = 0.5 + 0.02
            outline = Rectangle((column - edge, row - edge), 2 * edge, 2 * edge, fill=False, clip_on=False, zorder=4)
            outline.set(edgecolor=INK, linewidth=2)
            axes.add_patch(outline)


def _draw_cell(
    axes: Axes, group: Group, column: int, row: int, *, norm: LogNorm | None, colours: Colormap, narrow: bool
) -> None:
    spread = group.scores("heldout_perplexity")
    colour = to_hex(colours(norm(spread.mean))) if spread and norm else EMPTY
    lost = len(group.finished) < len(group.results)
    corner = (column - CELL / 2, row - CELL / 2)
    hatch_colour = MUTED if colour == EMPTY else _readable_on(colour)
    cell = Rectangle(corner, CELL, CELL, facecolor=colour, edgecolor=hatch_colour, linewidth=0)
    if lost:
        cell.set_hatch("////")
    axes.add_patch(cell)
    ink = INK if colour == EMPTY else _readable_on(colour)
    words = cell_text(group).replace(" ", "\n") if narrow else cell_text(group)
    text = axes.text(column, row, words, ha="center", va="center", color=ink, linespacing=1.15, fontsize=8)
    if lost:
        text.set_bbox({"facecolor": colour, "edgecolor": "none", "pad": 1.5})


def cell_text(group: Group) -> str:
    """Say what became of a combination of learning rates, one fact a line.

    The mean perplexity of the seeds that finished, and how many did not, such as `diverged 2/3`.
    """
    spread = group.scores("heldout_perplexity")
    lines = [format_perplexity(spread.mean)] if spread else []
    for status in ("diverged", "failed"):
        if group.count(status):
            lines.append(f"{status} {group.count(status)}/{len(group.results)}")
    return "\n".join(lines) or "no score"


def _readable_on(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45 else "#ffffff"


def _draw_scale(figure: Figure, panels: list[Axes], norm: LogNorm, colours: Colormap) -> None:
    scale = figure.colorbar(ScalarMappable(norm, colours), ax=panels, location="bottom", aspect=45, pad=0.02)
    label = "held-out perplexity, mean over the seeds that finished\n(PAD and EOS targets left out; darker is better)"
    scale.set_label(label, color=INK, fontsize=9)
    scale.outline.set_visible(False)
    low, high = float(norm.vmin or 1), float(norm.vmax or 1)
    ticks = [low * (high / low) ** (step / 4) for step in range(5)]
    scale.set_ticks(ticks, labels=[format_perplexity(tick) for tick in ticks])
    scale.ax.tick_params(labelcolor=INK, color=MUTED, labelsize=8)
    scale.minorticks_off()
