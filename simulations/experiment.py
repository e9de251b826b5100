"""One experiment from beginning to end: resume, rounds, scores, checkpoints, summary."""

import functools
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fl_core.checkpoints import Checkpoints, parameters_digest
from fl_core.cohorts import UniformSampler
from fl_core.compression import make_compressor
from fl_core.errors import CheckpointError, DataError
from fl_core.randomness import device_key
from fl_core.round_loop import FederatedOptimization, RoundResult, run_rounds
from fl_core.scores import DEFINITIONS, Scores, evaluate
from fl_core.server_optimizers import ServerState, init_server
from models.base import Batch, Model, parameter_count
from models.precision import precision_scope, resolve_precision, with_precision
from models.registry import create_model
from simulations.cohort_engine import ClientWork, CohortEngine
from simulations.configuration import Experiment, as_json
from simulations.datasets.store import TokenStore
from simulations.federated_data import FederatedData, StoredData, evaluation_batches
from simulations.lane_count import choose_lanes
from simulations.metrics_log import MetricsLog, finite_or_none, write_atomically

CPU_EVALUATION_BATCH, EVALUATION_BATCH = 16, 256
"""Rows scored together on each device: few on a CPU, so that their logits stay in its cache."""
DIVERGED_ROUNDS = 3

Observer = Callable[[dict[str, Any], int], None]
"""Called with the metrics row of each round and the number of rounds in all."""


class ExperimentData(NamedTuple):
    """The three splits of a data set, cut to the experiment's sequence length."""

    train: FederatedData
    heldout: FederatedData
    test: FederatedData
    vocabulary_size: int
    fingerprint: str


@dataclass(frozen=True)
class Divergence:
    """Why a run counts as diverged.

    Attributes:
      round_number: the round at which it was seen.
      reason: one sentence.
    """

    round_number: int
    reason: str


def run_experiment(experiment: Experiment, out: Path, observe: Observer = lambda row, rounds: None) -> dict[str, Any]:
    """Run an experiment, or the rest of it where `out` holds an unfinished one.

    Writes `metrics.jsonl`, TensorBoard events, checkpoints and, when all is done, `summary.json`. Killed at any
    instant and started again, it ends with the same parameters, bit for bit, on the same kind of machine with
    the same number of devices and lanes.

    Args:
      experiment: what to run.
      out: folder of the run; made where absent.
      observe: see `Observer`.

    Returns:
      The summary.

    Raises:
      UserError: settings, data or an earlier run in `out` do not fit.
    """
    model, precision = _model_and_precision(experiment)
    finished = _finished_summary(experiment, out)
    if finished is not None:
        return finished
    data = open_data(experiment)
    model = _cached_model(experiment.model, data.vocabulary_size, precision)
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with precision_scope(precision), Checkpoints(out / "checkpoints") as checkpoints:
        about = {"experiment": as_json(experiment), "vocabulary": data.fingerprint}
        state, first_round = _restore(experiment, model, checkpoints, about)
        with MetricsLog(out, first_round) as log:
            state, divergence = _train(experiment, model, data, state, first_round, checkpoints, about, log, observe)
            summary = _summarise(experiment, model, data, state, divergence, log, precision)
    summary["seconds_this_start"] = round(time.monotonic() - started, 3)
    write_atomically(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def open_data(experiment: Experiment) -> ExperimentData:
    """Open the data set of an experiment.

    Args:
      experiment: names the folder and the sequence length.

    Returns:
      Its splits.

    Raises:
      DataError: the store cannot be used, or a split has no example.
    """
    store = TokenStore.open(experiment.data)
    splits = {}
    for name in ("train", "heldout", "test"):
        splits[name] = StoredData(store.split(name), experiment.length)
        if not splits[name].num_examples.sum():
            raise DataError(f"{experiment.data}: split {name} has no example; import data with more clients")
    return ExperimentData(**splits, vocabulary_size=store.vocabulary_size, fingerprint=store.fingerprint)


def _train(
    experiment: Experiment,
    model: Model,
    data: ExperimentData,
    state: ServerState,
    first_round: int,
    checkpoints: Checkpoints,
    about: dict[str, Any],
    log: MetricsLog,
    observe: Observer,
) -> tuple[ServerState, Divergence | None]:
    engine = _engine(experiment, model, data)
    sampler = UniformSampler(len(data.train.num_examples), experiment.cohort_size, experiment.seed)
    optimization = FederatedOptimization(
        server=experiment.server_config(),
        server_learning_rate=experiment.server_learning_rate,
        client_learning_rate=experiment.client_learning_rate,
        seed=experiment.seed,
    )
    heldout = list(_batches(data.heldout, experiment, experiment.heldout_examples))
    divergence = find_divergence(log.rows)
    if divergence:
        return state, divergence
    clock = time.monotonic()
    for result in run_rounds(state, range(first_round, experiment.rounds), engine, sampler, optimization):
        state, done = result.state, result.round_number + 1
        row = _round_row(result)
        if done % experiment.evaluate_every == 0 or done == experiment.rounds:
            row |= _named(evaluate(model, state.params, heldout), "heldout")
        clock, row["seconds"] = time.monotonic(), time.monotonic() - clock
        log.append(row)
        observe(log.rows[-1], experiment.rounds)
        divergence = find_divergence(log.rows)
        if done % experiment.checkpoint_every == 0 or done == experiment.rounds or divergence:
            checkpoints.save(done, state, about)
        if divergence:
            break
    return state, divergence


def find_divergence(rows: list[dict[str, Any]]) -> Divergence | None:
    """Decide from its record whether a run has diverged beyond recovery.

    Args:
      rows: of the rounds so far.

    Returns:
      The divergence where the held-out loss is no number, or no client's update was finite for three rounds
      in a row; else None.
    """
    if not rows:
        return None
    last = rows[-1]
    if last.get("heldout_loss", 0.0) is None:
        return Divergence(last["round"], "the held-out loss is not a finite number")
    recent = rows[-DIVERGED_ROUNDS:]
    if len(recent) == DIVERGED_ROUNDS and all(row["clients"] == row["clients_dropped"] for row in recent):
        return Divergence(last["round"], f"no client sent a finite update for {DIVERGED_ROUNDS} rounds in a row")
    return None


def _round_row(result: RoundResult) -> dict[str, Any]:
    aggregate = jax.device_get(result.cohort.aggregate._replace(delta=()))
    accepted = max(float(aggregate.clients - aggregate.dropped), 1.0)
    tokens = float(aggregate.training.tokens)
    return {
        "round": result.round_number,
        "train_loss": float(aggregate.training.loss) / tokens if tokens else None,
        "clients": int(aggregate.clients),
        "clients_dropped": int(aggregate.dropped),
        "clients_clipped": int(aggregate.clipped),
        "examples": int(aggregate.examples),
        "steps": result.cohort.steps,
        "update_norm": float(aggregate.update_norm) / accepted,
        "bytes_down": result.cohort.bytes_down,
        "bytes_up": result.cohort.bytes_up,
    }


def _summarise(
    experiment: Experiment,
    model: Model,
    data: ExperimentData,
    state: ServerState,
    divergence: Divergence | None,
    log: MetricsLog,
    precision: str,
) -> dict[str, Any]:
    test = evaluate(model, state.params, _batches(data.test, experiment, experiment.test_examples))
    heldout = [row for row in log.rows if "heldout_loss" in row]
    if divergence is None and heldout and heldout[-1]["heldout_loss"] > math.log(data.vocabulary_size):
        divergence = Divergence(log.rows[-1]["round"], "the held-out loss ended above that of a uniform guess")
    last = {name: value for name, value in (heldout[-1] if heldout else {}).items() if name.startswith("heldout_")}
    return {
        "status": "diverged" if divergence else "finished",
        "diverged_at_round": divergence.round_number if divergence else None,
        "diverged_because": divergence.reason if divergence else None,
        **_named(test, "test"),
        **last,
        "rounds": len(log.rows),
        "parameters": parameter_count(model),
        "parameters_sha256": parameters_digest(state.params),
        "clients_dropped": sum(row["clients_dropped"] for row in log.rows),
        "bytes_down": sum(row["bytes_down"] for row in log.rows),
        "bytes_up": sum(row["bytes_up"] for row in log.rows),
        "training_seconds": round(sum(row["seconds"] for row in log.rows), 3),
        "privacy": "NOT PRIVATE",
        "metrics": DEFINITIONS,
        "experiment": as_json(experiment),
        "vocabulary_sha256": data.fingerprint,
        "machine": {
            "platform": jax.default_backend(),
            "devices": len(jax.local_devices()),
            "precision": precision,
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
    }


def _restore(
    experiment: Experiment, model: Model, checkpoints: Checkpoints, about: dict[str, Any]
) -> tuple[ServerState, int]:
    params = model.init(device_key(experiment.seed, "init"))
    state = init_server(experiment.server_config(), params)
    rounds = checkpoints.latest_round()
    if not rounds:
        return state, 0
    _check_same_run(checkpoints.restore_about(rounds), about, experiment)
    return jax.device_put(checkpoints.restore_state(rounds, state)), rounds


def _check_same_run(found: dict[str, Any], wanted: dict[str, Any], experiment: Experiment) -> None:
    old, new = found["experiment"], wanted["experiment"]
    changed = [name for name in new if name not in _MAY_CHANGE and old.get(name) != new[name]]
    if changed:
        what = "; ".join(f"{name} was {old.get(name)} and is now {new[name]}" for name in changed)
        raise CheckpointError(
            f"the --out folder holds a run with other settings: {what}. Give the same settings to go on with it, or "
            "another --out to begin a new one"
        )
    if found["vocabulary"] != wanted["vocabulary"]:
        raise CheckpointError(
            f"the --out folder holds a run on another vocabulary than that of {experiment.data}; give the data it was "
            "begun with, or another --out"
        )


_MAY_CHANGE = ("data", "rounds")
"""A run may go on for more rounds, and its data may have been moved (its vocabulary is compared instead)."""


def _finished_summary(experiment: Experiment, out: Path) -> dict[str, Any] | None:
    path = out / "summary.json"
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        same = summary["experiment"] == as_json(experiment)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a summary of ours ({error}); remove it, or give another --out") from error
    return summary if same else None


def _model_and_precision(experiment: Experiment) -> tuple[Model, Any]:
    precision = resolve_precision(experiment.precision, jax.default_backend())
    return create_model(experiment.model), precision


@functools.lru_cache(maxsize=32)
def _cached_model(name: str, vocabulary_size: int, precision: Any) -> Model:
    # The same object for the same model lets the next experiment of a comparison reuse compiled programs.
    return with_precision(create_model(name, vocabulary_size), precision)


def _engine(experiment: Experiment, model: Model, data: ExperimentData) -> CohortEngine:
    work = ClientWork(
        model=model,
        training=experiment.local_training(),
        compressor=make_compressor(experiment.upload_bits, experiment.upload_rotation),
        rules=experiment.aggregation_rules(),
    )
    lanes = experiment.lanes_per_device or choose_lanes(parameter_count(model), experiment.cohort_size)
    return CohortEngine(work, data.train, experiment.length, lanes_per_device=lanes)


def _batches(data: FederatedData, experiment: Experiment, max_examples: int | None) -> Iterator[Batch]:
    devices = jax.local_devices()
    rows_over_devices = NamedSharding(Mesh(np.array(devices), "devices"), PartitionSpec("devices"))
    per_device = CPU_EVALUATION_BATCH if devices[0].platform == "cpu" else EVALUATION_BATCH
    size = per_device * len(devices)
    for batch in evaluation_batches(data, experiment.length, size, max_examples):
        yield jax.device_put(batch, rows_over_devices)


def _named(scores: Scores, prefix: str) -> dict[str, float | None]:
    return {f"{prefix}_{name}": finite_or_none(value) for name, value in scores._asdict().items()}
