"""What noise of clients costs at equal epsilon: the error of a round's mean, beside Gaussian noise of the server.

Each client's update has the length of the clip norm, and all point the same way, so that their sum is as long as it can
be. Clients do what clients do. What comes out is compared with the mean of the updates. Rounding, wrapping and the
larger sensitivity of rounded updates are in the error. A number that wraps is off by eight times the spread of the
sum's numbers. The sum of a thousand equal updates is so long that a few such numbers are seen. Beside what is measured
stands what the same plan comes to for updates of 2^22 numbers, without wrapping; null where no noise reaches the
epsilon.

    python -m benchmarks.privacy.distributed_noise

It takes some minutes of one core.
"""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedlm.fedlm_client.distributed_noise.lattice import Lattice
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.distributed_noise import epsilon_of_divergences, skellam_divergences
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_noise_multiplier
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.mechanisms.skellam import Sizes, lattice_of
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.guarantee import calibrate, least_noise
from fedlm.fl_core.privacy.promise.plan import plan_noise

RESULTS = Path(__file__).parent / "results"
DELTA = 1e-6
BITS = (12, 14, 16, 18, 20)
EPSILONS = (2.5, 5.0, 10.0, 20.0)
COHORTS = (10, 100, 1000)
ROUNDS, APART = 64, 16
FEW, MANY = 1 << 14, 1 << 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinates", type=int, default=FEW, help="numbers of an update whose mean is measured")
    parser.add_argument("--most-clients", type=int, default=COHORTS[-1], help="larger cohorts are left out")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    cohorts = [clients for clients in COHORTS if clients <= arguments.most_clients]
    middle, size = cohorts[min(1, len(cohorts) - 1)], arguments.coordinates
    cases = {(bits, middle, middle, epsilon) for bits in BITS for epsilon in EPSILONS}
    cases |= {(bits, clients, clients, 5.0) for bits in BITS for clients in cohorts}
    cases |= {(20, middle, middle * share // 10, 5.0) for share in (9, 7, 5)}
    record = {
        "delta": DELTA,
        "coordinates": size,
        "rounds": [error_of(*case, size) for case in sorted(cases)],
        "prefix_sums": [prefix_error(name, most) for name in ("gaussian", "tree", "blt") for most in (1, 4)],
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "distributed_noise.json", json.dumps(record, indent=2) + "\n")
    plot(record, middle).savefig(arguments.results / "distributed_noise.png", dpi=120)
    print(json.dumps(record, indent=2))


def planned(sizes: Sizes, epsilon: float) -> tuple[float, Lattice]:
    """Find the noise multiplier for an epsilon of one round, and what clients do. Raises ConfigurationError where none
    reaches it."""

    def spent(noise: float) -> float:
        lattice = lattice_of(sizes, noise, 1.0, "skellam")
        return epsilon_of_divergences(
            skellam_divergences(*lattice.sensitivity(), sizes.survivors * lattice.variance), DELTA
        )

    noise = least_noise(spent, epsilon)
    return noise, lattice_of(sizes, noise, 1.0, "skellam")


def error_of(bits: int, clients: int, survivors: int, epsilon: float, size: int) -> dict[str, Any]:
    """Measure the error of a round in which all clients answer, over that of Gaussian noise; shares of the noise are
    for `survivors` of them."""
    noise, lattice = planned(Sizes(bits, clients, survivors, size), epsilon)
    random = np.random.default_rng([bits, clients, survivors])
    update = random.normal(size=size)
    update /= np.linalg.norm(update)
    rotation, total = b"benchmark", np.zeros(lattice.dimension, np.int64)
    for _ in range(clients):
        integers = lattice.rounded(update, rotation, random)
        assert integers is not None
        total += integers + lattice.drawn_noise(os.urandom)
    found = lattice.centred(lattice.reduced(total))
    gaussian = gaussian_noise_multiplier(epsilon, DELTA)
    error = np.linalg.norm(lattice.restored(found, rotation) - clients * update) / math.sqrt(size)
    try:
        many_noise, many = planned(Sizes(bits, clients, survivors, MANY), epsilon)
        of_many = math.sqrt(many_noise**2 * clients / survivors + clients / 4 / many.scale**2) / gaussian
    except ConfigurationError:
        of_many = None
    return {
        "bits": bits,
        "clients": clients,
        "least_survivors": survivors,
        "epsilon": epsilon,
        "noise_multiplier": noise,
        "gaussian_noise_multiplier": gaussian,
        "error_over_gaussian": float(error / gaussian),
        "wrapped_share": float(np.mean(found != total)),
        "error_over_gaussian_of_2_22": of_many,
    }


def prefix_error(name: str, most: int) -> dict[str, Any]:
    """Compute the noise in the sum of all rounds so far, in clip norms, averaged over rounds, at epsilon 5. That of
    Skellam noise is as much above that of `gaussian` as in a single round."""
    with_noise = plan_noise(name, ROUNDS, BoundedParticipation(most, APART))
    plan = calibrate(with_noise, DELTA, epsilon=5.0)
    deviations = plan.noise_multiplier * np.sqrt(MECHANISMS[name].prefix_variance(plan))
    return {"mechanism": name, "max_participations": most, "mean_deviation": float(np.sqrt(np.mean(deviations**2)))}


def plot(record: dict[str, Any], middle: int) -> Figure:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    by_epsilon, by_cohort = figure.subplots(1, 2)
    whole = [row for row in record["rounds"] if row["least_survivors"] == row["clients"]]
    for axes, name, fixed in ((by_epsilon, "epsilon", ("clients", middle)), (by_cohort, "clients", ("epsilon", 5.0))):
        for value in sorted({row[name] for row in whole if row[fixed[0]] == fixed[1]}):
            rows = [row for row in whole if row[name] == value and row[fixed[0]] == fixed[1]]
            bits = [row["bits"] for row in rows]
            (line,) = axes.plot(bits, [row["error_over_gaussian"] for row in rows], "o", label=f"{name} {value:g}")
            axes.plot(bits, [row["error_over_gaussian_of_2_22"] or math.nan for row in rows], color=line.get_color())
        axes.set_xlabel(f"bits of a number ({fixed[0]} {fixed[1]:g})")
        axes.set_ylim(0.95, 2)
        axes.set_xticks(BITS)
        axes.axhline(1.0, color="#5b6570", linestyle=":", zorder=0)
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    by_epsilon.set_ylabel("error of the mean,\nover that of Gaussian noise")
    figure.suptitle("Points: measured, 2^14 numbers. Lines: computed, 2^22 numbers, without wrapping", fontsize=9)
    return figure


if __name__ == "__main__":
    main()
