"""Measurements of federated runs: what `fedlm simulate` and `fedlm compare` recorded, as a grid of trainings.

A round is a step, its cohort a batch, and the noise-batch ratio the noise multiplier over the cohort size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.runs.recorded_runs import RecordedRun, find_runs
from fedlm.models.registry import create_model
from fedlm.simulations.experiments.configuration import MAY_MOVE, Experiment, experiment_of
from fedlm.simulations.laws.measuring.cell import non_embedding_parameters
from fedlm.simulations.laws.measuring.measurements import Measurements, make_measurements

FEDERATED = "simulate"
"""What the task of measurements of federated runs has as its command."""
OF_MECHANISMS = tuple(sorted({one.name for each in MECHANISMS.values() for one in fields(each.settings)}))
"""Settings of a run that its mechanism of noise has."""
RATES = ("server_learning_rate", "client_learning_rate")
_BLOCKS = 64
OF_A_RUN = {
    *("model", "seed", "data", "rounds", *RATES, "checkpoint_every", "lanes_per_device", "precision"),
    *("cohort_size", "cohort_sampler", "min_separation", "max_participations", "report_goal"),
    *("privacy", "noise_multiplier", "target_epsilon", "target_rho", "delta", "weighting"),
    *("noise_seed", "noise_cohort_size"),
    *("evaluate_every", "heldout_examples", "test_examples"),
}
"""Settings that are of a run, and not of what all runs of a task have in common."""
_OF_THE_DATA = ("training_data_sha256", "vocabulary_sha256")


@dataclass(frozen=True)
class ImportedRuns:
    """What was taken from folders of runs.

    Attributes:
      measurements: a row a block of rounds.
      task: what the runs have in common: settings by name, with `command`, `learning_rate`, the name of the rate that
        the measurements' column has, `privacy`, the mechanism of their noise, and the rate that was the same in all.
      left_out: why a run was left out, by its folder.
    """

    measurements: Measurements
    task: dict[str, Any]
    left_out: dict[Path, str]


class _Run(NamedTuple):
    recorded: RecordedRun
    experiment: Experiment

    @property
    def name(self) -> Path:
        return self.recorded.directory

    @property
    def summary(self) -> Mapping[str, Any]:
        return self.recorded.summary or {}

    @property
    def settings(self) -> dict[str, Any]:
        return self.recorded.settings


def import_runs(folders: Sequence[Path], block_rounds: int | None = None) -> ImportedRuns:
    """Read what finished federated runs measured.

    Private runs count by the noise multiplier that they recorded, other runs as without noise. The loss is that of
    clients in training, of a block of rounds the mean by examples; its error comes from how rounds differ.

    Args:
      folders: of runs, or of folders with such, as `fedlm compare` makes.
      block_rounds: rounds that are averaged; a 64th of the longest run's where None.

    Raises:
      UserError: there is no run that has finished, or they differ in more than models, one learning rate, noise,
        cohort sizes, rounds and seeds.
    """
    runs, left_out = [], {}
    for found in {run.directory.resolve(): run for folder in folders for run in find_runs(folder)}.values():
        why = _why_not(found)
        if why is None:
            runs.append(_Run(found, _experiment(found)))
        else:
            left_out[found.directory] = why
    if not runs:
        directory, why = next(iter(left_out.items()))
        raise DataError(f"no run can be imported of {len(left_out)}; {directory}: {why}")
    task = _common_task(runs)
    block = block_rounds or max(1, max(run.experiment.rounds for run in runs) // _BLOCKS)
    parts = [part for run in runs if (part := _measured(run, task["learning_rate"], block)) is not None]
    if not parts:
        raise DataError(f"{runs[0].name}: no round has a train_loss, expected one of every block of {block} rounds.")
    return ImportedRuns(parts[0].joined(parts[1:]), task, left_out)


def _why_not(run: RecordedRun) -> str | None:
    """Say why a run measures nothing that laws are fitted to; None where it does."""
    if run.kind not in ("simulate", "compare"):
        return f"is of `fedlm {run.kind}`, and not a simulated federated run"
    if run.state != "finished":
        return f"is {run.state}, and only finished runs are measurements"
    return None


def _experiment(run: RecordedRun) -> Experiment:
    try:
        experiment = experiment_of(run.settings)
    except (TypeError, KeyError, ConfigurationError) as error:
        raise DataError(f"{run.directory}: its settings cannot be read ({error}); leave this run out") from error
    cohorts, privacy = experiment.cohorts, experiment.privacy
    if privacy.is_private and privacy.clip_quantile is not None:
        raise DataError(
            f"{run.directory}: its clip norm moves (clip_quantile is {privacy.clip_quantile}), so that noise in clip "
            "norms has no fixed size; leave this run out"
        )
    if privacy.report_goal not in (None, cohorts.cohort_size):
        raise DataError(
            f"{run.directory}: report_goal is {privacy.report_goal}, but cohort_size {cohorts.cohort_size}; give runs "
            "where they are the same"
        )
    return experiment


def _common_task(runs: Sequence[_Run]) -> dict[str, Any]:
    """Return what runs have in common, and refuse those that differ in what measurements have no column for."""
    first, private = runs[0], [run for run in runs if run.experiment.privacy.is_private]
    for run in runs[1:]:
        _refuse_different(run, first, run.settings.keys() | first.settings.keys(), {*OF_A_RUN, *OF_MECHANISMS})
        for name in _OF_THE_DATA:
            if run.summary.get(name) != first.summary.get(name):
                raise DataError(f"{run.name}: is of other data or another vocabulary than {first.name}; leave it out")
    for run in private[1:]:
        _refuse_different(run, private[0], (*OF_MECHANISMS, "privacy"), ())
    varying = [rate for rate in RATES if len({run.settings[rate] for run in runs}) > 1]
    if len(varying) > 1:
        listed = ", ".join(f"{rate} {sorted({run.settings[rate] for run in runs})}" for rate in RATES)
        raise DataError(
            f"{first.name} and others differ in both learning rates ({listed}), and measurements have one; give the "
            "folders of runs in which one of them is the same, such as RUN/cells/*/client-0.5_*"
        )
    rate = varying[0] if varying else RATES[0]
    noise = {} if not private else {name: private[0].settings.get(name) for name in (*OF_MECHANISMS, "privacy")}
    kept = {name: value for name, value in first.settings.items() if name not in {*OF_A_RUN, *OF_MECHANISMS, *MAY_MOVE}}
    if (start := first.settings.get("init_from")) is not None:
        kept["init_from"] = start
    same = {other: first.settings[other] for other in RATES if other != rate}
    return {"command": FEDERATED, "privacy": "none"} | kept | noise | same | {"learning_rate": rate}


def _refuse_different(run: _Run, first: _Run, names: Any, but: Any) -> None:
    for name in sorted(set(names) - set(but)):
        if run.settings.get(name) != first.settings.get(name):
            raise DataError(
                f"{run.name}: {name} is {run.settings.get(name)}, but {first.settings.get(name)} in {first.name}; laws "
                "are of runs that differ in model, noise, one learning rate, cohort size, rounds and seed alone"
            )


def _measured(run: _Run, rate: str, block_rounds: int) -> Measurements | None:
    """Average a run's rounds by blocks; None where no block has a loss."""
    experiment, cohort_size = run.experiment, run.experiment.cohorts.cohort_size
    blocks: dict[int, list[dict[str, Any]]] = {}
    for row in run.recorded.rows:
        end = min((row["round"] // block_rounds + 1) * block_rounds, experiment.rounds)
        blocks.setdefault(end, []).append(row)
    values = [(end, *_loss(rows), _heldout(rows)) for end, rows in sorted(blocks.items())]
    values = [value for value in values if np.isfinite(value[1])]
    if not values:
        return None
    step, loss, error, heldout = zip(*values, strict=True)
    noise = run.summary.get("noise_multiplier") if experiment.privacy.is_private else 0.0
    if noise is None:
        raise DataError(f"{run.name}: its summary has no noise_multiplier; leave this run out")
    return make_measurements(
        model=experiment.model,
        parameters=run.summary["parameters"],
        non_embedding_parameters=_non_embedding(run),
        learning_rate=getattr(experiment, rate),
        noise_batch_ratio=noise / cohort_size,
        batch_size=cohort_size,
        length=experiment.training.length,
        steps=experiment.rounds,
        seed=experiment.seed,
        step=step,
        loss=loss,
        loss_error=error,
        gradient_noise_scale=np.nan,
        heldout_loss=heldout,
    )


def _loss(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The mean of the rounds' losses, by examples, and its standard error; NaN where there is none."""
    known = [(row["train_loss"], row["examples"]) for row in rows if row.get("train_loss") is not None]
    if not known:
        return np.nan, np.nan
    losses, examples = np.array(known, np.float64).T
    shares = examples / examples.sum()
    loss = float(losses @ shares)
    if len(losses) < 2:
        return loss, np.nan
    # Of a mean with weights, of which equal ones give the usual error.
    return loss, float(np.sqrt(np.square(shares * (losses - loss)).sum() * len(losses) / (len(losses) - 1)))


def _heldout(rows: Sequence[Mapping[str, Any]]) -> float:
    last = rows[-1].get("heldout_loss")
    return np.nan if last is None else float(last)


def _non_embedding(run: _Run) -> int:
    name = run.experiment.model
    try:
        return non_embedding_parameters(create_model(name))
    except ConfigurationError as error:
        raise DataError(f"{run.name}: the model {name!r} is not known here; give runs of models by name") from error
