"""Bins that take turns, and a min-separation, beside Poisson sampling: the least noise of each at equal epsilon.

    python -m benchmarks.privacy.bins

All have batches of N / b units on average. With bands, the strategy is the same and has columns of norm 1, so that the
noise multipliers compare the errors of all sums, too. Poisson sampling is then cyclic, and the min-separation is the
number of bands. A point that the results have is not computed again; without the file, all take hours of a core.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import calibrate
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan

RESULTS = Path(__file__).parent / "results"
BATCH = 100

# One band is fresh noise in each step.
NAMES = ("bins_of_batches", "epochs", "bands", "epsilon", "delta")
POINTS = [
    *((100, epochs, 1, epsilon, 1e-6) for epsilon in (1.0, 4.0) for epochs in (1, 2, 4)),
    *((100, epochs, 10, 4.0, 1e-6) for epochs in (1, 2)),
    (100, 2, 50, 4.0, 1e-6),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    file = arguments.results / "bins.json"
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    arguments.results.mkdir(parents=True, exist_ok=True)
    for point in POINTS:
        if not any(point == tuple(row[name] for name in NAMES) for row in rows):
            rows.append(row_of(*point))
            print(json.dumps(rows[-1]), flush=True)
            write_atomically(file, json.dumps(rows, indent=2) + "\n")
    plot(rows).savefig(arguments.results / "bins.png", dpi=120)


def row_of(bins: int, epochs: int, bands: int, epsilon: float, delta: float) -> dict[str, Any]:
    """Find the noise of all at one point."""

    def noise_of(**sampling: bool) -> float:
        def planned(noise: float) -> PrivacyPlan:
            more = {"bands": bands, "coefficients": _column(bands)} if bands > 1 else {}
            return central_plan(bins * BATCH, BATCH, bins * epochs, noise, **sampling, **more)

        return calibrate(planned, delta, epsilon=epsilon).noise_multiplier

    found = dict(zip(NAMES, (bins, epochs, bands, epsilon, delta), strict=True))
    found |= {"poisson": noise_of(), "bins": noise_of(in_bins=True)}
    return found | ({"min_separation": noise_of(min_separation=True)} if bands > 1 else {})


def _column(bands: int) -> tuple[float, ...]:
    """Coefficients that fall as those of the best do, with norm 1; accounting needs no more of them."""
    root = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, bands))])
    return tuple(map(float, root / np.linalg.norm(root)))


def plot(rows: list[dict[str, Any]]) -> Figure:
    """Draw the noise of both over that of Poisson sampling, point by point."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots(1, 1)
    places = np.arange(len(rows))
    for name, label, offset, color in (
        ("bins", "bins", -0.2, "tab:blue"),
        ("min_separation", "min-separation", 0.2, "tab:orange"),
    ):
        ratios = np.array([row.get(name, math.nan) / row["poisson"] for row in rows])
        axes.bar(places + offset, ratios, 0.4, label=label, color=color)
        for place, ratio in zip(places + offset, ratios, strict=True):
            if ratio > 0:
                white = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
                text = f"{ratio:.2f}"
                axes.annotate(text, (place, ratio + 0.012), ha="center", va="bottom", fontsize=8, bbox=white)
    axes.axhline(1.0, color="black", linewidth=0.8, zorder=0)
    words = [
        f"{row['epochs']} epoch{'s' * (row['epochs'] > 1)}\nepsilon {row['epsilon']:g}\n"
        + (f"{row['bands']} bands" if row["bands"] > 1 else "no bands")
        for row in rows
    ]
    axes.set_xticks(places, words, fontsize=8)
    axes.set_ylabel("noise / noise of Poisson sampling")
    batches, delta = rows[0]["bins_of_batches"], rows[0]["delta"]
    axes.set_title(f"Noise at equal epsilon, delta {delta:g}, {batches} batches an epoch", fontsize=11)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
