"""Extraction rates against what the model is shown."""

from typing import Any

from fedlm.simulations.plot_style import FAMILIES, INK, MUTED, new_figure, to_png


def plot_rates(found: dict[str, Any]) -> bytes:
    """Draw what `measure_memorization` found, extraction rates against the length of the prefix, as a PNG file's
    content."""
    figure = new_figure(3.2)
    axes = figure.subplots()
    rows = found["extraction"]
    for name, colour in zip(found["sequences"], (FAMILIES[1], MUTED), strict=False):
        for kind, dash in (("exact", "-"), ("approximate", (0, (4, 2)))):
            measured = [row for row in rows if name in row]
            places = [row["prefix"] for row in measured]
            rates = [row[name][kind] for row in measured]
            errors = [
                [100 * abs(rate["rate"] - rate["low"]) for rate in rates],
                [100 * abs(rate["high"] - rate["rate"]) for rate in rates],
            ]
            axes.errorbar(
                places,
                [100 * rate["rate"] for rate in rates],
                yerr=errors,
                color=colour,
                linestyle=dash,
                marker="o",
                capsize=3,
                label=f"{name}, {kind}",
            )
    axes.set_xlabel("tokens of the prefix", color=INK)
    axes.set_ylabel(f"extracted suffixes of {found['suffix']} tokens, %", color=INK)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return to_png(figure)
