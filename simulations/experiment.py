"""One experiment from beginning to end: resume, rounds, scores, checkpoints, summary."""

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fl_core.compression import make_compressor
from fl_core.errors import CheckpointError, ConfigurationError, DataError
from fl_core.processes import gather, is_first, together
from fl_core.randomness import device_key
from fl_core.round_loop import FederatedOptimization, run_rounds
from fl_core.scores import ClientSums, Scores, evaluate, evaluate_clients
from fl_core.server_optimizers import ServerState, init_server
from models.base import Model, Params, parameter_count
from models.precision import Precision, precision_scope, resolve_precision, with_precision
from models.registry import create_model
from simulations.atomic_files import write_atomically
from simulations.client_scores import client_columns, write_table
from simulations.cohort_engine import ClientWork, CohortEngine
from simulations.cohort_samplers import Cohorts, make_cohorts
from simulations.configuration import MAY_MOVE, Experiment, as_json, with_defaults
from simulations.datasets.store import TokenStore
from simulations.federated_data import StoredData, device_batches, evaluation_owners
from simulations.lane_count import choose_lanes
from simulations.run_folder import RunFolder
from simulations.run_record import (
    Divergence,
    find_divergence,
    finished_summary,
    named_scores,
    round_row,
    summarise,
)

Observer = Callable[[dict[str, Any], int], None]
"""Called with the metrics row of each round and the number of rounds in all."""


class PreparedExperiment(NamedTuple):
    """An experiment whose settings and data have been found to fit.

    Attributes:
      experiment: its settings.
      model: with the data's vocabulary, in the policy's precision.
      precision: the resolved policy.
      train: the training clients.
      heldout: the held-out clients.
      test: the test clients.
      vocabulary: fingerprint of the data's tokenizer.
      contents: fingerprint of the data.
      cohorts: how they are drawn.
    """

    experiment: Experiment
    model: Model
    precision: Precision
    train: StoredData
    heldout: StoredData
    test: StoredData
    vocabulary: str
    contents: str
    cohorts: Cohorts


def run_experiment(
    experiment: Experiment,
    out: Path,
    observe: Observer = lambda row, rounds: None,
    save_client_scores: bool = False,
) -> dict[str, Any]:
    """Run an experiment, or the rest of it where `out` holds an unfinished one.

    Writes `metrics.jsonl`, TensorBoard events, checkpoints and, when all is done, `summary.json`. Killed at any
    instant and started again, it ends with the same parameters, bit for bit, on the same kind of machine with
    the same number of devices and lanes.

    Several processes that `jax.distributed` has joined call it together, with the same settings. They train and score
    on the devices of all of them; only the first touches the folder. The result is the same, bit for bit, as that of
    one process with as many devices.

    Args:
      experiment: what to run.
      out: folder of the run; made where absent.
      observe: see `Observer`; called in the first process.
      save_client_scores: write `test_clients.parquet` too, a row a test client.

    Returns:
      The summary.

    Raises:
      UserError: settings, data or an earlier run in `out` do not fit, or processes differ in them.
    """
    prepared = together(lambda: prepare(experiment))
    _check_same_everywhere(prepared)
    finished = gather(together(lambda: _finished(prepared, out, save_client_scores)))[0]
    if finished is not None:
        return finished
    with precision_scope(prepared.precision), RunFolder(out) as folder:
        state, first_round = folder.resume(
            _fresh_state(prepared), lambda found: _check_same_run(found, _about(prepared), experiment)
        )
        state, divergence = _train(prepared, state, first_round, folder, observe)
        test, clients = _score_test_clients(prepared, state.params)
        summary = summarise(
            experiment,
            prepared.model,
            prepared.precision,
            prepared.vocabulary,
            state.params,
            folder.rows,
            test,
            clients,
            divergence,
            prepared.cohorts.file,
        )
        if is_first():
            table = client_columns(clients, prepared.test.client_ids) if save_client_scores else None
            _write_results(out, summary, table)
    return gather(summary)[0]


def _finished(prepared: PreparedExperiment, out: Path, save_client_scores: bool) -> dict[str, Any] | None:
    if not is_first() or (save_client_scores and not (out / _TABLE).exists()):
        return None
    return finished_summary(prepared.experiment, out, prepared.cohorts.file, prepared.vocabulary)


def _write_results(out: Path, summary: dict[str, Any], table: dict[str, Any] | None) -> None:
    if table is not None:
        write_table(out / _TABLE, table)
    else:
        # A table from before would be of other parameters than the summary.
        (out / _TABLE).unlink(missing_ok=True)
    write_atomically(out / "summary.json", json.dumps(summary, indent=2) + "\n")


def prepare(experiment: Experiment) -> PreparedExperiment:
    """Open an experiment's data and build its model, touching nothing on disk.

    Args:
      experiment: what is to be run.

    Returns:
      What `run_experiment` works with.

    Raises:
      UserError: settings or data do not fit.
    """
    create_model(experiment.model)
    precision = resolve_precision(experiment.precision, jax.default_backend())
    store = TokenStore.open(experiment.data)
    splits = {}
    for name in ("train", "heldout", "test"):
        splits[name] = StoredData(store.split(name), experiment.length)
        if not splits[name].num_examples.sum():
            raise DataError(f"{experiment.data}: split {name} has no example; import data with more clients")
    return PreparedExperiment(
        experiment=experiment,
        model=_model(experiment.model, store.vocabulary_size, precision),
        precision=precision,
        **splits,
        vocabulary=store.fingerprint,
        contents=store.contents,
        cohorts=make_cohorts(experiment, splits["train"]),
    )


def _train(
    prepared: PreparedExperiment,
    state: ServerState,
    first_round: int,
    folder: RunFolder,
    observe: Observer,
) -> tuple[ServerState, Divergence | None]:
    experiment, model = prepared.experiment, prepared.model
    optimization = FederatedOptimization(
        server=experiment.server_config(),
        server_learning_rate=experiment.server_learning_rate,
        client_learning_rate=experiment.client_learning_rate,
        seed=experiment.seed,
        server_warmup_rounds=experiment.server_warmup_rounds,
    )
    heldout = list(device_batches(prepared.heldout, experiment.length, experiment.heldout_examples))
    divergence = find_divergence(folder.rows)
    rounds = range(first_round, first_round if divergence else experiment.rounds)
    started = time.monotonic()
    for result in run_rounds(state, rounds, _engine(prepared), prepared.cohorts.sampler, optimization):
        state, done = result.state, result.round_number + 1
        row = round_row(result)
        if done % experiment.evaluate_every == 0 or done == experiment.rounds:
            row |= named_scores(evaluate(model, state.params, heldout), "heldout")
        started, row["seconds"] = time.monotonic(), time.monotonic() - started
        folder.append(row)
        if is_first():
            observe(folder.rows[-1], experiment.rounds)
        divergence = find_divergence(folder.rows)
        if done % experiment.checkpoint_every == 0 or done == experiment.rounds or divergence:
            folder.save(done, state, _about(prepared))
        if divergence:
            break
    return state, divergence


def _score_test_clients(prepared: PreparedExperiment, params: Params) -> tuple[Scores, ClientSums]:
    examples = prepared.experiment.test_examples
    batches = device_batches(prepared.test, prepared.experiment.length, examples)
    return evaluate_clients(prepared.model, params, batches, evaluation_owners(prepared.test, examples))


def _fresh_state(prepared: PreparedExperiment) -> ServerState:
    params = prepared.model.init(device_key(prepared.experiment.seed, "init"))
    return init_server(prepared.experiment.server_config(), params)


def _about(prepared: PreparedExperiment) -> dict[str, Any]:
    file = prepared.cohorts.file
    return {
        "experiment": as_json(prepared.experiment),
        "vocabulary": prepared.vocabulary,
        "cohort_file_sha256": file.sha256 if file else None,
    }


def _check_same_everywhere(prepared: PreparedExperiment) -> None:
    facts = as_json(prepared.experiment) | {
        "content of data": prepared.contents,
        "content of the file that cohorts are drawn by": prepared.cohorts.file and prepared.cohorts.file.sha256,
        "precision": prepared.precision,
        "version of jax": jax.__version__,
        "kind of device": jax.local_devices()[0].device_kind,
    }
    first, *others = gather({name: value for name, value in facts.items() if name not in MAY_MOVE})
    for process, found in enumerate(others, start=1):
        different = [name for name in first if found.get(name) != first[name]]
        if different:
            what = "; ".join(f"{name} is {first[name]} in process 0 and {found.get(name)} there" for name in different)
            raise ConfigurationError(f"process {process} differs from process 0: {what}. Start all with the same")


_TABLE = "test_clients.parquet"
_MAY_CHANGE = ("rounds", *MAY_MOVE)
"""A run may go on for more rounds, and its files may have been moved (fingerprints are compared instead)."""


def _check_same_run(found: dict[str, Any], wanted: dict[str, Any], experiment: Experiment) -> None:
    old, new = with_defaults(found["experiment"]), wanted["experiment"]
    changed = [name for name in new if name not in _MAY_CHANGE and old.get(name) != new[name]]
    if changed:
        what = "; ".join(f"{name} was {old.get(name)} and is now {new[name]}" for name in changed)
        raise CheckpointError(
            f"the --out folder holds a run with other settings: {what}. Give the same settings to go on with it, "
            "or another --out to begin a new one"
        )
    if found["vocabulary"] != wanted["vocabulary"]:
        raise CheckpointError(
            f"the --out folder holds a run on another vocabulary than that of {experiment.data}; give the data it "
            "was begun with, or another --out"
        )
    if found.get("cohort_file_sha256") != wanted["cohort_file_sha256"]:
        raise CheckpointError(
            "the --out folder holds a run whose cohorts were drawn by another file, or one of other content, than "
            f"{experiment.availability_trace or experiment.cohort_weights}; give the file it was begun with, or "
            "another --out"
        )


@functools.lru_cache(maxsize=32)
def _model(name: str, vocabulary_size: int, precision: Precision) -> Model:
    # The same object for the same model lets the next experiment of a comparison reuse compiled programs.
    return with_precision(create_model(name, vocabulary_size), precision)


def _engine(prepared: PreparedExperiment) -> CohortEngine:
    experiment = prepared.experiment
    work = ClientWork(
        model=prepared.model,
        training=experiment.local_training(),
        compressor=make_compressor(experiment.upload_bits, experiment.upload_rotation),
        rules=experiment.aggregation_rules(),
    )
    lanes = experiment.lanes_per_device or choose_lanes(parameter_count(prepared.model), experiment.cohort_size)
    # The memory of devices, by which lanes are chosen, may differ a little between processes.
    lanes = gather(lanes)[0]
    return CohortEngine(work, prepared.train, experiment.length, lanes_per_device=lanes)
