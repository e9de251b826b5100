"""Scale-invariant against standard architectures: full grid of learning rates, three seeds, two data sets.

For each data set every model is trained with all rates and seeds; then, at the rates selected for it, with uploads of
fewer and of more bits, with the rates of a production setting without clipping of local gradients, and for three times
the rounds. Runs that are finished are kept, so the command goes on where it was stopped. Needs the data sets:

    fedlm data import stdlib --out runs/stdlib
    fedlm data import stackexchange ../shared/data/stackexchange --out runs/stackexchange
    python -m benchmarks.architectures.comparison

Models are tiny and rounds few, so that CPU cores can do it; `--models` and `--rounds` make it larger.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.architectures.comparison_plots import LONGER, plot
from benchmarks.machine import describe_machine
from fedlm.commands.progress import CellProgress
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.composed_settings import compose, with_changes
from fedlm.simulations.experiments.cell_execution import LocalProcesses, run_cells
from fedlm.simulations.experiments.comparison import Cell, CellObserver, CellResult, read_result, run_comparison
from fedlm.simulations.experiments.configuration import Comparison, Experiment
from fedlm.simulations.reporting.report import write_report
from fedlm.simulations.reporting.selection import Group, ModelResult, Spread, group_results, mean_curve, model_results

RESULTS = Path(__file__).parent / "results"
MODELS = ("cifg_tiny", "si_cifg_tiny", "transformer_tiny", "si_transformer_tiny")
UPLOAD_BITS = (2, 4, 32)
PRODUCTION = {"client_learning_rate": 0.7, "server_learning_rate": 0.02, "client_gradient_clip": None}
"""Rates of the published runs on production data (Ro et al. 2024, table 3), where nothing was clipped."""
ARMS: dict[str, dict[str, Any]] = {f"{bits}-bit uploads": {"upload_bits": bits} for bits in UPLOAD_BITS}
ARMS["production setting"] = PRODUCTION
ARMS[LONGER] = {}
"""Settings of the runs beside the grid, by name."""
CURVES = ("update_norm", "gradient_norm", "train_loss")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", default=[Path("runs/stdlib"), Path("runs/stackexchange")])
    parser.add_argument("--out", type=Path, default=Path("runs/architectures"), help="folder of the runs")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--cohort-size", type=int, default=20)
    parser.add_argument("--client-rates", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--server-rates", type=float, nargs="+", default=[0.005, 0.01, 0.02])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS), help="what runs beside the grid")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where numbers and plots go")
    arguments = parser.parse_args()
    console = Console()
    arguments.results.mkdir(parents=True, exist_ok=True)
    for data in arguments.data:
        comparison = compose(
            Comparison,
            data=data,
            models=tuple(arguments.models),
            rounds=arguments.rounds,
            cohort_size=arguments.cohort_size,
            client_learning_rates=tuple(arguments.client_rates),
            server_learning_rates=tuple(arguments.server_rates),
            seeds=tuple(arguments.seeds),
            client_gradient_clip=1.0,
            heldout_examples=2000,
        )
        out = arguments.out / data.name
        results = run_grid(comparison, out, console)
        models = model_results(results)
        arms = run_arms(arguments.arms, comparison, models, out, console)
        record = {
            "machine": describe_machine(),
            "data": data.name,
            "setting": {name: value for name, value in dataclasses.asdict(comparison).items() if name != "data"},
            "models": {model.model: describe_model(model) for model in models},
            "arms": {name: {group.model: describe_group(group) for group in groups} for name, groups in arms.items()},
        }
        write_atomically(arguments.results / f"comparison_{data.name}.json", json.dumps(record, indent=1) + "\n")
        plot(record).savefig(arguments.results / f"comparison_{data.name}.png", dpi=110)
        console.print(f"{data.name}: {arguments.results / f'comparison_{data.name}.png'}")


def run_grid(comparison: Comparison, out: Path, console: Console) -> list[CellResult]:
    """Run all models with all rates and seeds, and write the report that `fedlm compare` writes."""
    with CellProgress(comparison.rounds * len(comparison.experiments())) as progress:
        results = run_comparison(comparison, out, None, progress.update)
    report = write_report(comparison, results, out, "python -m benchmarks.architectures.comparison")
    console.print(f"the grid's report: {report}")
    return results


def run_arms(
    arms: Sequence[str],
    comparison: Comparison,
    models: Sequence[ModelResult],
    out: Path,
    console: Console,
) -> dict[str, list[Group]]:
    """Run what is compared beside the grid.

    Args:
      arms: names from `ARMS`.
      comparison: the grid's settings.
      models: what the grid found.
      out: folder of all runs.
      console: for progress.

    Returns:
      For each arm a group a model.
    """
    cells = {
        name: [
            Cell(changed(base, name), out / "arms" / name.replace(" ", "-") / model.model / str(seed))
            for model in models
            for seed, base in selected_experiments(comparison, model)
        ]
        for name in arms
    }
    every = [cell for arm in cells.values() for cell in arm]
    failures = run_cells(every, LocalProcesses(), progress_lines(console))
    return {name: group_results([read_result(cell, failures.get(cell)) for cell in arm]) for name, arm in cells.items()}


def changed(base: Experiment, arm: str) -> Experiment:
    """Make the settings of an arm from those of a run of the grid."""
    more = {"rounds": 3 * base.rounds} if arm == LONGER else {}
    return with_changes(base, **ARMS[arm], **more)


def selected_experiments(comparison: Comparison, model: ModelResult) -> list[tuple[int, Experiment]]:
    """List the runs of a model at its selected rates, by seed."""
    if model.selected is None:
        return []
    rates = (model.selected.client_learning_rate, model.selected.server_learning_rate)
    return [
        (experiment.seed, experiment)
        for experiment in comparison.experiments()
        if experiment.model == model.model
        and (experiment.client_learning_rate, experiment.server_learning_rate) == rates
    ]


def progress_lines(console: Console) -> CellObserver:
    """Make an observer that prints a line when a run ends."""

    def observe(cell: Cell, row: dict[str, Any]) -> None:
        if row["round"] + 1 == cell.experiment.rounds:
            console.print(f"{cell.directory}: held-out perplexity {row.get('heldout_perplexity')}", soft_wrap=True)

    return observe


def describe_model(model: ModelResult) -> dict[str, Any]:
    """Make a JSON-able record of a model's part in the grid."""
    return {
        "twin": model.twin,
        "rounds_to_twins_final_quality": model.rounds_to_twin,
        "selected": describe_group(model.selected) if model.selected else None,
        "grid": [
            {
                "client_learning_rate": group.client_learning_rate,
                "server_learning_rate": group.server_learning_rate,
                "heldout_perplexity": as_record(group.scores("heldout_perplexity")),
                "diverged": group.count("diverged"),
            }
            for group in model.groups
        ],
    }


def describe_group(group: Group) -> dict[str, Any]:
    """Make a JSON-able record of a model at one pair of rates."""
    curve = mean_curve(group.finished, "perplexity")
    return {
        "client_learning_rate": group.client_learning_rate,
        "server_learning_rate": group.server_learning_rate,
        "status": [result.status for result in group.results],
        "test_perplexity": as_record(group.scores("test_perplexity")),
        "test_accuracy": as_record(group.scores("test_accuracy")),
        "heldout_perplexity": as_record(group.scores("heldout_perplexity")),
        "curve": {
            "rounds": curve.rounds.tolist(),
            "mean": [round(value, 2) for value in curve.mean.tolist()],
            "std": None if curve.std is None else [round(value, 2) for value in curve.std.tolist()],
        }
        if curve
        else None,
        "by_round": {name: mean_by_round(group, name) for name in CURVES},
    }


def mean_by_round(group: Group, name: str) -> list[float | None]:
    """Average a number of every round over the seeds that finished."""
    columns = zip(*([row.get(name) for row in result.rows] for result in group.finished), strict=False)
    return [None if None in column else round(sum(column) / len(column), 4) for column in columns]


def as_record(spread: Spread | None) -> dict[str, Any] | None:
    """Make a JSON-able record of a score over seeds."""
    return None if spread is None else spread._asdict()


if __name__ == "__main__":
    main()
