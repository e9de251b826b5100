"""Bins that take turns, and a min-separation, beside Poisson sampling: the least noise of each at equal epsilon.

    python -m benchmarks.privacy.bins

All have batches of N / b units on average. With bands, the strategy is the same and has columns of norm 1, so that the
noise multipliers compare the errors of all sums, too. Poisson sampling is then cyclic, and the min-separation is the
number of bands.
"""

import argparse
import json
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

# Bins, epochs, bands (1 where noise is fresh in each step), epsilon and delta.
POINTS = [
    *((100, epochs, 1, epsilon, 1e-6) for epsilon in (1.0, 4.0) for epochs in (1, 2, 4)),
    *((100, epochs, 10, 4.0, 1e-6) for epochs in (1, 2)),
    (100, 2, 50, 4.0, 1e-6),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    rows = []
    for point in POINTS:
        rows.append(row_of(*point))
        print(json.dumps(rows[-1]), flush=True)
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "bins.json", json.dumps(rows, indent=2) + "\n")
    plot(rows).savefig(arguments.results / "bins.png", dpi=120)


def row_of(bins: int, epochs: int, bands: int, epsilon: float, delta: float) -> dict[str, Any]:
    """Find the noise of all at one point."""

    def noise_of(**sampling: bool) -> float:
        def planned(noise: float) -> PrivacyPlan:
            more = {"bands": bands, "coefficients": _column(bands)} if bands > 1 else {}
            return central_plan(bins * BATCH, BATCH, bins * epochs, noise, **sampling, **more)

        return calibrate(planned, delta, epsilon=epsilon).noise_multiplier

    found = {"poisson": noise_of(), "bins": noise_of(in_bins=True)}
    if bands > 1:
        found["min_separation"] = noise_of(min_separation=True)
    point = {"bins_of_batches": bins, "epochs": epochs, "bands": bands, "epsilon": epsilon, "delta": delta}
    return point | found | {"ratio": found["bins"] / found["poisson"]}


def _column(bands: int) -> tuple[float, ...]:
    """Coefficients that fall as those of the best do, with norm 1; accounting needs no more of them."""
    root = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, bands))])
    return tuple(map(float, root / np.linalg.norm(root)))


def plot(rows: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots(1, 1)
    ratios = [row["ratio"] for row in rows]
    places = np.arange(len(rows))
    axes.bar(places, ratios, color=["tab:green" if ratio < 1 else "tab:red" for ratio in ratios])
    for place, ratio in zip(places, ratios, strict=True):
        axes.annotate(f"{ratio:.2f}", (place, ratio), ha="center", va="bottom", fontsize=7)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(
        places,
        [
            f"b {row['bins_of_batches']}\nepochs {row['epochs']}\nbands {row['bands']}\neps {row['epsilon']:g}\n"
            f"delta {row['delta']:g}"
            for row in rows
        ],
        fontsize=6,
    )
    axes.set_ylabel("noise of bins / noise of Poisson sampling")
    axes.set_title("Noise at equal epsilon: below 1, bins need less", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
