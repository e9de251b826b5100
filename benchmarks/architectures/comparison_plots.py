"""The picture of a comparison of architectures, from its committed record."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

LONGER = "three times the rounds"
"""The arm that is drawn as curves, since the grid's rounds are its first ones."""
_TENFOLD, _ROOM_FOR_LEGEND = 10, 0.2
COLOURS = {"cifg": "#0072b2", "transformer": "#d55e00"}
Record = dict[str, Any]


def plot(record: Record) -> Figure:
    """Draw six panels: quality over rounds, final quality, robustness to rates and to uploads, norms over rounds.

    Args:
      record: of one data set, as `comparison.py` writes it.

    Returns:
      The figure.
    """
    figure = Figure(figsize=(16, 10), layout="constrained")
    panels = figure.subplots(2, 3)
    seeds, rounds = len(record["setting"]["seeds"]), record["setting"]["rounds"]
    figure.suptitle(
        f"{record['data']}: {rounds} rounds of {record['setting']['cohort_size']} clients, {seeds} seeds, "
        "solid: scale-invariant, dashed: standard",
        fontweight="bold",
    )
    draw_curves(panels[0, 0], record)
    draw_final(panels[0, 1], record)
    draw_rates(panels[0, 2], record)
    draw_uploads(panels[1, 0], record)
    draw_norms(panels[1, 1], record, "gradient_norm", "Norm of local gradients before clipping")
    draw_norms(panels[1, 2], record, "update_norm", "Norm of clients' updates")
    for axes in panels.flat:
        if axes.get_yscale() == "log":
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_curves(axes: Axes, record: Record) -> None:
    """Draw held-out perplexity over rounds at the selected rates, one standard deviation shaded."""
    longer = record["arms"].get(LONGER, {})
    for name, model in found_models(record).items():
        curve = (longer.get(name) or {}).get("curve") or model["selected"]["curve"]
        rounds, mean = np.array(curve["rounds"]), np.array(curve["mean"])
        axes.plot(rounds, mean, label=f"{title(name)}: {mean[-1]:.0f}", **style(name))
        if curve["std"]:
            std = np.array(curve["std"])
            axes.fill_between(rounds, mean - std, mean + std, color=style(name)["color"], alpha=0.12, linewidth=0)
    axes.set_yscale("log")
    axes.set_xlabel("rounds done")
    words = f", {LONGER}" if longer else ""
    axes.set_title(f"Held-out perplexity at the selected rates{words}", loc="left")
    axes.legend(frameon=False, title="at the end")


def draw_final(axes: Axes, record: Record) -> None:
    """Draw test perplexity and accuracy as bars with their standard deviation."""
    models = found_models(record)
    for place, (name, model) in enumerate(models.items()):
        perplexity, accuracy = model["selected"]["test_perplexity"], model["selected"]["test_accuracy"]
        filled = {"color": style(name)["color"], "alpha": 0.85 if name.startswith("si_") else 0.4}
        axes.bar(place, perplexity["mean"], yerr=perplexity["std"], capsize=5, **filled)
        text = f"{perplexity['mean']:.1f}\n{100 * accuracy['mean']:.2f} %"
        axes.text(place, perplexity["mean"] * 0.5, text, ha="center", va="center")
    axes.set_xticks(
        range(len(models)), [f"{title(name)}\n{rates(model['selected'])}" for name, model in models.items()]
    )
    axes.set_title("Test perplexity and accuracy", loc="left")


def draw_rates(axes: Axes, record: Record) -> None:
    """Draw the final held-out perplexity of every pair of rates: how much a model minds them."""
    models = found_models(record)
    for place, (name, model) in enumerate(models.items()):
        finals = [pair["heldout_perplexity"]["mean"] for pair in model["grid"] if pair["heldout_perplexity"]]
        colour = style(name)["color"]
        axes.plot([place, place], [min(finals), max(finals)], color=colour, linewidth=8, alpha=0.2)
        axes.plot([place] * len(finals), finals, "o", color=colour)
        axes.text(place, max(finals) * 1.02, f"x {max(finals) / min(finals):.2f}", ha="center", va="bottom")
    axes.set_xticks(range(len(models)), [title(name) for name in models])
    axes.set_xlim(-0.5, len(models) - 0.5)
    axes.set_yscale("log")
    axes.margins(y=0.1)
    axes.set_title("Held-out perplexity of all pairs of rates", loc="left")


def draw_uploads(axes: Axes, record: Record) -> None:
    """Draw how test perplexity changes with the width of uploads, and in the production setting."""
    models = found_models(record)
    arms = {name: arm for name, arm in record["arms"].items() if arm and name != LONGER}
    width = 0.8 / max(len(arms), 1)
    for number, (arm, groups) in enumerate(arms.items()):
        places, values, errors = [], [], []
        for place, name in enumerate(models):
            found = groups.get(name, {}).get("test_perplexity")
            reference = models[name]["selected"]["test_perplexity"]["mean"]
            where = place + (number - (len(arms) - 1) / 2) * width
            if found is None:
                axes.text(where, 1.0, "diverged", rotation=90, ha="center", va="bottom")
                continue
            places.append(where)
            values.append(found["mean"] / reference - 1)
            errors.append((found["std"] or 0) / reference)
        # No perplexity is below 0, however much seeds differ.
        errors = [np.minimum(errors, np.array(values) + 1), errors]
        axes.bar(places, 100 * np.array(values), width, yerr=100 * np.array(errors), capsize=3, label=arm)
    axes.axhline(0, color="black", linewidth=0.8)
    if any(abs(top) > 300 for top in axes.get_ylim()):
        axes.set_yscale("symlog", linthresh=10)
    axes.margins(y=0.25)
    axes.set_xticks(range(len(models)), [title(name) for name in models])
    axes.set_ylabel("per cent")
    axes.set_title("Test perplexity over the selected run's (8 bits)", loc="left")
    if arms:
        axes.legend(frameon=False, loc="upper left", ncols=2)


def draw_norms(axes: Axes, record: Record, name_of_norm: str, heading: str) -> None:
    """Draw a norm over rounds, smoothed over five rounds."""
    for name, model in found_models(record).items():
        values = [value for value in model["selected"]["by_round"][name_of_norm] if value is not None]
        if len(values) < 5:
            continue
        smooth = np.convolve(values, np.ones(5) / 5, "valid")
        axes.plot(np.arange(len(smooth)) + 5, smooth, label=title(name), **style(name))
    axes.set_xlabel("round")
    low, high = axes.get_ylim()
    if low > 0 and high > _TENFOLD * low:
        axes.set_yscale("log")
    else:
        axes.set_ylim(low, high + _ROOM_FOR_LEGEND * (high - low))
    axes.set_title(f"{heading} (mean of 5 rounds)", loc="left")
    axes.legend(frameon=False, loc="upper right", ncols=2)


def found_models(record: Record) -> dict[str, Record]:
    """Choose the models of which a run finished."""
    return {
        name: model
        for name, model in record["models"].items()
        if model["selected"] and model["selected"]["test_perplexity"]
    }


def style(name: str) -> dict[str, Any]:
    """Choose a line's look by its model: colour by family, dashes for the standard architecture."""
    family = next((family for family in COLOURS if family in name), "cifg")
    return {"color": COLOURS[family], "linestyle": "-" if name.startswith("si_") else "--", "linewidth": 2}


def title(name: str) -> str:
    """Write a model's name for people."""
    family = "CIFG" if "cifg" in name else "Transformer"
    return f"SI-{family}" if name.startswith("si_") else family


def rates(selected: Record) -> str:
    """Write the selected rates."""
    return f"{selected['client_learning_rate']:g} / {selected['server_learning_rate']:g}"
