"""Central training with banded noise and cyclic sampling against DP-SGD, at equal epsilon.

First what can be computed: the error of prefix sums of banded noise and of independent noise, at equal epsilon and
batch size, by epochs and epsilon, with as many bands as are best. Then small real trainings with SGD: each mechanism at
each of some learning rates with the first seed, then at the best of these with the others.

    python -m benchmarks.privacy.amplified_banded
"""

import argparse
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.machine import describe_machine
from benchmarks.privacy.memorization import fedlm
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.privacy.accounting import calibrate
from fedlm.fl_core.privacy.band_choice import best_bands, prefix_error
from fedlm.fl_core.privacy.central_plan import central_plan, most_bands
from fedlm.fl_core.privacy.ledger import PrivacyLedger
from fedlm.fl_core.privacy.plan import LEDGER_FILE
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.simulations.plot_style import FAMILIES, MARKERS, MUTED, new_figure, style_frame, to_png
from fedlm.simulations.pretraining.run import run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining

RESULTS = Path(__file__).parent / "results"
MECHANISMS = {"gaussian": "independent (DP-SGD)", "banded": "banded"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps-per-epoch", type=int, default=100)
    parser.add_argument("--epochs", nargs="*", type=int, default=[1, 4, 16])
    parser.add_argument("--epsilons", nargs="*", type=float, default=[0.5, 1, 2, 4, 8, 16, 32])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--model", default="transformer_tiny")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--epsilon", type=float, default=8.0, help="of the trainings")
    parser.add_argument("--rates", nargs="*", type=float, default=[1.0, 4.0])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the numbers and the plot go")
    arguments = parser.parse_args()
    record = {
        "machine": describe_machine(),
        "settings": {name: value for name, value in vars(arguments).items() if name != "results"},
        "errors": [errors(arguments, epochs) for epochs in arguments.epochs],
        "trainings": trainings(arguments),
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.results / "amplified_banded.json", json.dumps(record, indent=2) + "\n")
    (arguments.results / "amplified_banded.png").write_bytes(to_png(plot(record)))
    print(json.dumps(record, indent=2))


def errors(arguments: argparse.Namespace, epochs: int) -> dict[str, Any]:
    """Errors of prefix sums, in clip norms over the batch size, at every epsilon."""
    batch_size = 100
    units, steps = batch_size * arguments.steps_per_epoch, epochs * arguments.steps_per_epoch
    found = []
    for epsilon in arguments.epsilons:

        @functools.cache
        def calibrated(bands: int, epsilon: float = epsilon) -> Any:
            with_noise = lambda noise: central_plan(units, batch_size, steps, noise, bands=bands)  # noqa: E731
            return calibrate(with_noise, arguments.delta, epsilon)

        independent, banded = calibrated(1), best_bands(calibrated, most_bands(units, batch_size, steps))
        found.append(
            {
                "epsilon": epsilon,
                "independent": prefix_error(independent) / batch_size,
                "banded": prefix_error(banded) / batch_size,
                "bands": len(banded.coefficients),
            }
        )
    return {"epochs": epochs, "steps": steps, "at": found}


def trainings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Test losses by mechanism, in nats a token: of each rate with the first seed, and of the best with all seeds."""
    first, *others = arguments.seeds
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        fedlm("data", "import", "stdlib", "--vocabulary-size=512", "--out", str(store))
        found = {}
        for mechanism in MECHANISMS:
            train_one = functools.partial(train, arguments, store, Path(folder), mechanism)
            tried = {rate: train_one(rate, first) for rate in arguments.rates}
            best = min(tried, key=lambda rate: tried[rate]["test_loss"])
            summaries = [tried[best], *(train_one(best, seed) for seed in others)]
            plan = summaries[0]["plan"]
            found[mechanism] = {
                "by_rate": {f"{rate:g}": summary["test_loss"] for rate, summary in tried.items()},
                "rate": best,
                "test_loss": [summary["test_loss"] for summary in summaries],
                "noise_multiplier": plan["noise_multiplier"],
                "bands": len(plan["coefficients"]) or None,
                "units": summaries[0]["units"]["units"],
            }
    return found


def train(
    arguments: argparse.Namespace, store: Path, folder: Path, mechanism: Any, rate: float, seed: int
) -> dict[str, Any]:
    """Train once; returns the summary, and the plan."""
    out = folder / f"{mechanism}-{rate:g}-{seed}"
    settings = Pretraining(
        model=arguments.model,
        data=store,
        steps=arguments.steps,
        batch_size=arguments.batch_size,
        length=arguments.length,
        mechanism=mechanism,
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        noise_seed="experiment",
        optimizer="sgd",
        learning_rate=rate,
        seed=seed,
        evaluate_every=arguments.steps,
        heldout_examples=100,
        test_examples=1000,
        checkpoint_every=arguments.steps,
    )
    summary = run_pretraining(settings, out)
    return summary | {"plan": PrivacyLedger(out / PRIVACY_FOLDER / LEDGER_FILE).plan.as_json()}


def plot(record: dict[str, Any]) -> Figure:
    figure = new_figure(2.8)
    computed, trained = figure.subplots(1, 2)
    for found, colour, marker in zip(record["errors"], FAMILIES, MARKERS, strict=False):
        epsilons = [one["epsilon"] for one in found["at"]]
        ratios = [one["banded"] / one["independent"] for one in found["at"]]
        epochs = "1 epoch" if found["epochs"] == 1 else f"{found['epochs']} epochs"
        computed.plot(epsilons, ratios, color=colour, marker=marker, label=epochs)
    computed.axhline(1.0, color=MUTED, linestyle=":")
    computed.set_xscale("log")
    computed.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    computed.minorticks_off()
    computed.set_ylim(0, 1.05)
    computed.set_xlabel("epsilon", fontsize=8, color=MUTED)
    computed.set_title("error of prefix sums, over DP-SGD's", fontsize=9, loc="left")
    computed.legend(frameon=False, fontsize=8)
    for (mechanism, label), colour, marker in zip(MECHANISMS.items(), FAMILIES, MARKERS, strict=False):
        found = record["trainings"][mechanism]
        rates = [float(rate) for rate in found["by_rate"]]
        trained.plot(rates, list(found["by_rate"].values()), color=colour, label=label)
        losses = found["test_loss"]
        # Beside each other, so that none hides another.
        beside = found["rate"] * (1.0 if mechanism == "banded" else 0.95)
        trained.scatter([beside] * len(losses), losses, color=colour, marker=marker, s=18)
    trained.set_xscale("log")
    trained.set_xticks(rates, [f"{rate:g}" for rate in rates])
    trained.minorticks_off()
    trained.set_xlabel("learning rate (marks: seeds at the best)", fontsize=8, color=MUTED)
    trained.set_title(f"test loss, epsilon {record['settings']['epsilon']:g}", fontsize=9, loc="left")
    trained.legend(frameon=False, fontsize=8)
    for axes in (computed, trained):
        style_frame(axes)
    return figure


if __name__ == "__main__":
    main()
