"""The claims on production training of Ro et al. 2024: how often CIFG diverges, and SI-CIFG, and both with DP-FTRL.

    python -m benchmarks.architectures.production --dumps ../shared/data/stackexchange
    python -m benchmarks.architectures.production report

Client rate 0.7, server rate 0.02, local gradients not clipped, uploads of 8 bits, 2,000 rounds (table 3), of which the
first 500 of all seeds come first, and what would show is said before anything is trained:

- a training diverges where its held-out loss is no finite number, or it ends above a uniform guess, or its mean over
  the last 100 rounds is above twice the lowest perplexity that 100 rounds in a row had;
- it spikes where after the first 100 rounds a held-out perplexity is more than one and a half times the lowest before.

With DP-FTRL all models have the same epsilon: the same cohorts, clip norm and noise. Its rates are selected in a grid,
which no epsilon here has paid for. The command goes on where it was stopped, as that of the axes
(`python -m benchmarks.architectures.axes`) does, and writes results/production.json, production.md and a picture.
"""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binomtest

from benchmarks.architectures.axes.__main__ import Study, main
from benchmarks.architectures.axes.gaps import Spread, gap, left_at, score
from benchmarks.architectures.axes.plots import TITLES
from benchmarks.architectures.axes.points import DATA, EVALUATE_EVERY, Axis, Point, Setting
from benchmarks.architectures.axes.records import DIVERGED, Records
from benchmarks.architectures.axes.report import gap_words, spread_words, table
from benchmarks.architectures.axes.selection import seeds_of
from fedlm.fl_core.atomic_files import write_atomically

ROUNDS = (500, 2000)
"""After which stability is stated; trainings go on from one to the next, and the last is the published number."""
SEEDS = (0, 1, 2, 3, 4, 5, 6)
WINDOW = 100
"""Rounds over which scores and curves are averaged."""
LOST = 2.0
SPIKE = 1.5
STANDARD = "cifg"
MODELS = (STANDARD, "si_cifg")
_HIGHEST_DRAWN = float(DATA["stackexchange"].vocabulary)
"""Perplexity of a uniform guess, at which curves leave the picture."""
EPSILONS = (30.0, 100.0)
"""In the order in which they are trained."""


def _stability(data: str) -> Axis:
    rates: dict[str, Any] = {"client_rates": (0.7,), "server_rates": (0.02,), "seeds": SEEDS}
    points = tuple(Point(f"{data}, {rounds:,} rounds", Setting(data, clip=None), rounds, **rates) for rounds in ROUNDS)
    return Axis(f"stability on {data}", points, MODELS)


AXES = {
    "stackexchange": _stability("stackexchange"),
    "stdlib": _stability("stdlib"),
    "dp_ftrl": Axis(
        "epsilon of DP-FTRL",
        tuple(
            Point(
                epsilon,
                Setting(cohort=100, max_batches=8, privacy=epsilon),
                client_rates=(1.0,),
                server_rates=(0.25, 0.5, 1.0, 2.0),
            )
            for epsilon in EPSILONS
        ),
        MODELS,
    ),
}
PRIVATE = ("dp_ftrl",)


def smoothed(rows: list[list[float | None]]) -> tuple[np.ndarray, np.ndarray]:
    """Average held-out losses [rounds, loss, ...] over the last `WINDOW` rounds: rounds from there on, perplexities."""
    rounds = np.array([row[0] for row in rows], float)
    losses = np.array([math.nan if row[1] is None else row[1] for row in rows])
    ends = rounds[rounds >= WINDOW]
    means = [float(np.mean(losses[(rounds > end - WINDOW) & (rounds <= end)])) for end in ends]
    with np.errstate(over="ignore"):
        return ends, np.exp(np.array(means))


def diverged(found: dict[str, Any]) -> bool:
    """Say whether a training diverged, as the head of this module has it."""
    if found["status"] == DIVERGED or any(row[1] is None for row in found["heldout"]):
        return True
    _, perplexities = smoothed(found["heldout"])
    return len(perplexities) > 0 and bool(perplexities[-1] > LOST * perplexities.min())


def spikes(found: dict[str, Any]) -> int:
    """Count the spikes of a training; those in a row are one."""
    lowest, number, within = math.inf, 0, False
    for rounds, loss, *_ in found["heldout"]:
        high = rounds > WINDOW and (loss is None or loss > lowest + math.log(SPIKE))
        number += high and not within
        within = high
        lowest = min(lowest, math.inf if loss is None else loss)
    return number


def write_report(records: Records, axes: dict[str, Axis], folder: Path) -> Path:
    """Write the page and its picture of what has been trained."""
    folder.mkdir(parents=True, exist_ok=True)
    open_ends = [
        name
        for name, axis in axes.items()
        if any(left_at(records, point, model) for point in axis.points for model in axis.models)
    ]
    missing = (
        f"**Trainings are missing of: {', '.join(open_ends)}** "
        f"(`python -m benchmarks.architectures.production --axis {' '.join(open_ends)}`)."
    )
    sections = [
        "# Production training",
        f"Models of 0.4 M parameters; 20 clients a round, {ROUNDS[-1]:,} rounds at client rate 0.7 and server rate "
        "0.02, local gradients not clipped, uploads of 8 bits. A training diverges where its held-out loss is not "
        f"finite, or ends above a uniform guess, or where its mean over the last {WINDOW} rounds is above {LOST:g} "
        f"times the lowest perplexity that {WINDOW} rounds in a row had. It spikes where after {WINDOW} rounds a "
        f"held-out perplexity, taken every {EVALUATE_EVERY} rounds, is above {SPIKE:g} times the lowest before. "
        f"Perplexities are means over the last {WINDOW} rounds, or a sixth of fewer than 600, of seeds that did not "
        "diverge.",
        missing if open_ends else "All trainings have ended.",
    ]
    stable = {name: axis for name, axis in axes.items() if name not in PRIVATE}
    if any(_ended(records, point, model) for axis in stable.values() for point in axis.points for model in axis.models):
        beside = folder / "production.partial.png"
        draw(records, stable).savefig(beside, dpi=100)
        beside.replace(folder / "production.png")
        picture = "![Held-out perplexity of every seed over rounds](production.png)"
        sections += [
            _stability_table(records, stable),
            "As far as each seed has been trained, also between these numbers of rounds:",
            _exposure_table(records, stable),
            picture,
        ]
    for name in PRIVATE:
        if name in axes:
            sections += ["## DP-FTRL", _private_table(records, axes[name])]
    path = folder / "production.md"
    write_atomically(path, "\n\n".join(sections) + "\n")
    return path


def _ended(records: Records, point: Point, model: str) -> dict[int, dict[str, Any]]:
    """Give what was found of a model's seeds that have come to a point's rounds, until there."""
    runs = [run for run in seeds_of(records, point, model) if records.has(run, point.rounds)]
    return {run.seed: until(point.rounds, records.runs[run]) for run in runs}


def _as_far_as_it_came(records: Records, axis: Axis, model: str) -> dict[int, dict[str, Any]]:
    """Give all that was found of a model's seeds that have come to the axis' first point, whose rates all have."""
    first = axis.points[0]
    return {run.seed: records.runs[run] for run in seeds_of(records, first, model) if records.has(run, first.rounds)}


def until(rounds: int, found: dict[str, Any]) -> dict[str, Any]:
    """Give what a training's first so many rounds would have given of `diverged` and `spikes`."""
    rows = [row for row in found["heldout"] if row[0] <= rounds]
    # One that was stopped later because it diverged had not done so by then.
    status = found["status"] if found["rounds"] <= rounds else ""
    return found | {"status": status, "heldout": rows}


def _exposure_table(records: Records, axes: dict[str, Axis]) -> str:
    rows = []
    for name, axis in axes.items():
        for model in MODELS:
            found = _as_far_as_it_came(records, axis, model)
            if not found:
                continue
            ends = {seed: lost_after(one) for seed, one in sorted(found.items())}
            lasted = [end or found[seed]["rounds"] for seed, end in ends.items()]
            words = [
                f"{found[seed]['rounds']:,}" + (f" (lost after {end:,})" if end else "") for seed, end in ends.items()
            ]
            rows.append([name, TITLES[model], ", ".join(words), f"{sum(map(bool, ends.values()))} in {sum(lasted):,}"])
    head = ["text", "model", "rounds of each seed", "divergences in rounds before them"]
    return table(head, rows)


def lost_after(found: dict[str, Any]) -> int | None:
    """Say after how many rounds a training that diverged was still no worse than `SPIKE` times its best; None of one
    that did not diverge."""
    if not diverged(found):
        return None
    losses = np.array([math.inf if row[1] is None else row[1] for row in found["heldout"]])
    well = losses <= np.minimum.accumulate(losses) + math.log(SPIKE)
    return int(found["heldout"][int(np.flatnonzero(well)[-1])][0])


def _stability_table(records: Records, axes: dict[str, Axis]) -> str:
    rows = []
    for point in (point for axis in axes.values() for point in axis.points):
        any_lost = False
        for model in MODELS:
            found = _ended(records, point, model)
            if not found:
                continue
            lost = [seed for seed, one in found.items() if diverged(one)]
            any_lost = any_lost or bool(lost)
            # Of seeds that either model has lost there is no gap, and of the others it would be one of a choice.
            apart = None if model == STANDARD or any_lost else gap(records, point, model, STANDARD)
            scores = score(records, point, model)
            kept = [] if scores is None else [loss for seed, loss in scores.test.items() if seed not in lost]
            perplexity = Spread(tuple(math.exp(loss) for loss in kept)) if kept else None
            rows.append(
                [
                    str(point.value),
                    TITLES[model],
                    f"{len(lost)} of {len(found)}" + _share(len(lost), len(found)),
                    str(sum(spikes(one) for one in found.values())),
                    spread_words(perplexity),
                    "" if apart is None else f"{gap_words(apart)}: {apart.verdict}",
                ]
            )
    head = [
        "text and rounds",
        "model",
        "diverged (share, 95 % interval)",
        "spikes, all seeds",
        "test perplexity",
        "gap to CIFG, %",
    ]
    return table(head, rows)


def _share(number: int, of: int) -> str:
    interval = binomtest(number, of).proportion_ci(0.95, method="exact")
    return f" ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def _private_table(records: Records, axis: Axis) -> str:
    rows = []
    for point in axis.points:
        for model in axis.models:
            found = score(records, point, model)
            if found is None:
                continue
            (run, *_) = seeds_of(records, point, model)
            apart = None if model == STANDARD else gap(records, point, model, STANDARD)
            rows.append(
                [
                    f"{point.value:g}",
                    TITLES[model],
                    spread_words(found.perplexity()),
                    "" if apart is None else f"{gap_words(apart)}: {apart.verdict}",
                    f"{found.rates[0]:g}, {found.rates[1]:g}" + (" (edge)" if found.at_edge else ""),
                    str(len(found.test)),
                    records.runs[run]["privacy"],
                ]
            )
    if not rows:
        return "Nothing has been trained yet."
    note = "Rates were selected with the first seed on held-out loss, which no epsilon here has paid for."
    head = [
        "target epsilon",
        "model",
        "test perplexity at the end",
        "gap to CIFG, %",
        "rates",
        "seeds",
        "statement of the first seed",
    ]
    return f"{table(head, rows)}\n\n{note}"


def draw(records: Records, axes: dict[str, Axis]) -> Figure:
    """Draw each seed's held-out perplexity over rounds, a panel a text and model that has any; thick the mean
    of the last `WINDOW` rounds, as published, behind it single scores; what has diverged leaves the picture."""
    longest = {
        name: {model: _as_far_as_it_came(records, axis, model) for model in axis.models} for name, axis in axes.items()
    }
    texts = [name for name, by_model in longest.items() if any(by_model.values())]
    models = [model for model in MODELS if any(longest[name][model] for name in texts)]
    every = (found for by_model in longest.values() for seeds in by_model.values() for found in seeds.values())
    lowest = math.exp(min(row[1] for found in every for row in found["heldout"] if row[1] is not None))
    figure = Figure(figsize=(4.4 * len(models), 3.6 * len(texts)), layout="constrained")
    panels = figure.subplots(len(texts), len(models), sharex=True, sharey="row", squeeze=False)
    for row, name in zip(panels, texts, strict=True):
        for panel, model in zip(row, models, strict=True):
            for seed, found in longest[name][model].items():
                colour = f"C{seed}"
                single = np.array([row[:2] for row in found["heldout"] if row[1] is not None])
                perplexities = np.exp(np.minimum(single[:, 1], math.log(_HIGHEST_DRAWN**2)))
                panel.plot(single[:, 0], perplexities, color=colour, linewidth=0.5, alpha=0.4)
                ends, means = smoothed(found["heldout"])
                panel.plot(ends, np.minimum(means, _HIGHEST_DRAWN**2), color=colour, label=f"seed {seed}")
            panel.set_yscale("log")
            panel.set_ylim(lowest / 1.2, _HIGHEST_DRAWN)
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("")
            panel.set_title(f"{TITLES[model]}, {name}", loc="left", fontsize=10)
            panel.set_xlabel("rounds done")
            panel.grid(alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel(f"held-out perplexity\n(thick: mean of {WINDOW} rounds)")
    panels[0, 0].legend(frameon=False, fontsize=8)
    return figure


STUDY = Study(__doc__ or "", AXES, "production", write_report)


if __name__ == "__main__":
    sys.exit(main(study=STUDY))
