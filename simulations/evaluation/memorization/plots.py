"""Extraction rates against what the model is shown."""

from typing import Any

import numpy as np

from fedlm.simulations.plot_style import FAMILIES, INK, MUTED, new_figure, to_png


def plot_rates(found: dict[str, Any]) -> bytes:
    """Return a PNG file's content: the extraction rates that `measure_memorization` found, by length of the prefix."""
    figure = new_figure(3.2)
    axes = figure.subplots()
    rows = found["extraction"]
    for name, colour in zip(found["sequences"], (FAMILIES[1], MUTED), strict=False):
        for kind, dash in (("exact", "-"), ("approximate", (0, (4, 2)))):
            rates = [[row["prefix"], *map(row[name][kind].get, ("rate", "low", "high"))] for row in rows if name in row]
            prefix, rate, low, high = np.array(rates).reshape(-1, 4).T
            errors = 100 * np.abs([rate - low, high - rate])
            look: Any = {"color": colour, "linestyle": dash, "marker": "o", "capsize": 3, "label": f"{name}, {kind}"}
            axes.errorbar(prefix, 100 * rate, yerr=errors, **look)
    axes.set_xlabel("tokens of the prefix", color=INK)
    axes.set_ylabel(f"extracted suffixes of {found['suffix']} tokens, %", color=INK)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return to_png(figure)
