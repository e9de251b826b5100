"""The paper's figures 2, 6 and 7 in our form, and scores by epsilon and by popularity."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.recommendation.claims import Evidence, Spread, grid_gains
from benchmarks.recommendation.models import MODELS, VARIANTS
from fedlm.simulations.evaluation.recommendation.metrics import GROUPS

COLOURS = {
    "gru": "#999999",
    "lstm": "#56b4e9",
    "untied": "#e69f00",
    "tied": "#d55e00",
    "dpformer": "#0072b2",
    "placebo": "#cc79a7",
    "private_relevance": "#009e73",
    "untied_half": "#f0e442",
    "dpformer_untied": "#6a51a3",
}
_OF_SHARING = ("untied_half", "untied", "tied")
_OF_ATTENTION = ("tied", "placebo", "private_relevance", "dpformer", "untied", "dpformer_untied")


def draw(evidence: Evidence) -> dict[str, Figure]:
    """Draw all figures, by the name of their file."""
    return {
        "epsilon": by_epsilon(evidence),
        "sharing": bars_by_epsilon(evidence, _OF_SHARING, "Sharing items between reading and scoring (figure 2)"),
        "controls": bars_by_epsilon(evidence, _OF_ATTENTION, "Re-attention and its controls"),
        "curves": curves(evidence),
        "rates": rates(evidence),
        "popularity": by_popularity(evidence),
    }


def by_epsilon(evidence: Evidence) -> Figure:
    """Draw HIT@10 and NDCG@10 of the five models over epsilon, and without privacy."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    epsilons = [*evidence.scale.epsilons, None]
    names = [*(f"{one:g}" for one in evidence.scale.epsilons), "no privacy"]
    for axes, metric in zip(figure.subplots(1, 2), ("ndcg@10", "hit@10"), strict=True):
        for number, variant in enumerate(MODELS):
            spreads = [(place, evidence.spread(variant, epsilon, metric)) for place, epsilon in enumerate(epsilons)]
            known = [(place, spread) for place, spread in spreads if spread is not None]
            places = [place + 0.06 * (number - 2) for place, _ in known]
            of_seeds = [spread for _, spread in known]
            private = [index for index, (place, _) in enumerate(known) if epsilons[place] is not None]
            means = [100 * spread.mean for spread in of_seeds]
            label = VARIANTS[variant].title
            axes.errorbar(places, means, _whiskers(of_seeds), fmt="o", color=COLOURS[variant], capsize=3, label=label)
            axes.plot([places[i] for i in private], [means[i] for i in private], color=COLOURS[variant], linewidth=1)
        axes.axhline(100 * evidence.popularity(metric), color="black", linestyle=":", label="popularity")
        axes.set_xticks(range(len(epsilons)), names)
        axes.set_xlabel("epsilon")
        _style(axes, f"{metric.upper()} of test items, per cent")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def bars_by_epsilon(evidence: Evidence, variants: tuple[str, ...], title: str) -> Figure:
    """Draw NDCG@10 of some variants as bars, side by side at each epsilon; whiskers reach from seed to seed."""
    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    axes, width = figure.subplots(), 0.8 / len(variants)
    for number, variant in enumerate(variants):
        spreads = [(place, evidence.spread(variant, one)) for place, one in enumerate(evidence.scale.epsilons)]
        known = [(place + (number - (len(variants) - 1) / 2) * width, one) for place, one in spreads if one is not None]
        if known:
            places, of_seeds = zip(*known, strict=True)
            heights, errors = [100 * one.mean for one in of_seeds], _whiskers(of_seeds)
            style = {"color": COLOURS[variant], "edgecolor": "black", "linewidth": 0.5}
            axes.bar(places, heights, width, yerr=errors, capsize=3, label=VARIANTS[variant].title, **style)
    axes.axhline(100 * evidence.popularity(), color="black", linestyle=":", label="popularity")
    axes.set_xticks(range(len(evidence.scale.epsilons)), [f"{one:g}" for one in evidence.scale.epsilons])
    axes.set_xlabel("epsilon")
    axes.margins(y=0.3)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center")
    _style(axes, f"{title}: NDCG@10, per cent")
    return figure


def curves(evidence: Evidence) -> Figure:
    """Draw NDCG@10 of heldout users over epochs, a panel an epsilon; bands reach from seed to seed."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, len(evidence.scale.epsilons), sharey=True, squeeze=False)[0]
    for axes, epsilon in zip(panels, evidence.scale.epsilons, strict=True):
        for variant in MODELS:
            found = [dict((row[0], row[2]) for row in cell["curve"]) for cell in evidence.cells(variant, epsilon)]
            # A training that was interrupted may lack one.
            epochs = sorted(set.intersection(*(set(one) for one in found))) if found else []
            if epochs:
                values = 100 * np.array([[one[epoch] for epoch in epochs] for one in found])
                axes.plot(
                    epochs,
                    values.mean(axis=0),
                    "o-",
                    markersize=3,
                    color=COLOURS[variant],
                    label=VARIANTS[variant].title,
                )
                axes.fill_between(epochs, values.min(axis=0), values.max(axis=0), color=COLOURS[variant], alpha=0.2)
        axes.set_xlabel("epochs")
        _style(axes, f"epsilon {epsilon:g}")
    panels[0].set_ylabel("NDCG@10 of heldout users, per cent")
    if panels[0].lines:
        panels[0].legend(frameon=False, fontsize=8)
    return figure


def rates(evidence: Evidence) -> Figure:
    """Draw how much DPFormer is above the tied Transformer at each learning rate and batch size (figure 7)."""
    gains, scale = grid_gains(evidence), evidence.scale
    batches, all_rates = sorted({scale.batch_size, *scale.other_batch_sizes}), sorted(scale.rates)
    shown = np.array([[100 * gains.get((batch, rate), np.nan) for rate in all_rates] for batch in batches])
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    most = float(np.nanmax(np.abs(shown))) if np.isfinite(shown).any() else 1.0
    image = axes.imshow(shown, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for row, column in np.argwhere(np.isfinite(shown)):
        white = abs(shown[row, column]) > 0.6 * most
        colour = "white" if white else "black"
        axes.text(column, row, f"{shown[row, column]:+.0f} %", ha="center", va="center", color=colour)
    axes.set_xticks(range(len(all_rates)), [f"{rate:g}" for rate in all_rates])
    axes.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_xlabel("learning rate")
    axes.set_ylabel("batch size")
    axes.set_title(f"NDCG@10, DPFormer over the tied Transformer, epsilon {scale.rate_epsilon:g}, one seed", fontsize=9)
    figure.colorbar(image, label="per cent")
    return figure


def by_popularity(evidence: Evidence) -> Figure:
    """Draw HIT@10 of the five models by the popularity of the right item, private and not."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    epsilons = (evidence.scale.rate_epsilon, None)
    width = 0.8 / (len(MODELS) + 1)
    for axes, epsilon in zip(figure.subplots(1, 2), epsilons, strict=True):
        for number, variant in enumerate(MODELS):
            spreads = [evidence.spread(variant, epsilon, "hit@10", group) for group in range(len(GROUPS))]
            known = [(place + number * width, one) for place, one in enumerate(spreads) if one is not None]
            if known:
                places, of_seeds = zip(*known, strict=True)
                heights = [100 * one.mean for one in of_seeds]
                errors = _whiskers(of_seeds)
                axes.bar(
                    places,
                    heights,
                    width,
                    yerr=errors,
                    capsize=2,
                    color=COLOURS[variant],
                    label=VARIANTS[variant].title,
                )
        popular = [100 * evidence.popularity("hit@10", group) for group in range(len(GROUPS))]
        places = np.arange(len(GROUPS)) + len(MODELS) * width
        axes.bar(places, popular, width, color="white", edgecolor="black", hatch="//", label="popularity")
        axes.set_xticks(np.arange(len(GROUPS)) + 0.4 - width / 2, GROUPS)
        _style(axes, f"HIT@10, per cent, {'no privacy' if epsilon is None else f'epsilon {epsilon:g}'}")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def _whiskers(spreads: list[Spread] | tuple[Spread, ...]) -> np.ndarray:
    """From the mean to the least and to the greatest seed, in per cent: [2, spreads]."""
    reach = [(one.mean - min(one.values), max(one.values) - one.mean) for one in spreads]
    return 100 * np.maximum(np.array(reach).reshape(-1, 2).T, 0)


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.3, axis="y")
    axes.spines[["top", "right"]].set_visible(False)
