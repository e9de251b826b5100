"""One experiment from beginning to end: resume, rounds, scores, checkpoints, summary."""

import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.cohorts import CohortSampler
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.privacy.plan import LEDGER_FILE
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.round_loop import FederatedOptimization, RoundResult, run_rounds
from fedlm.fl_core.runs.processes import gather, is_first, together
from fedlm.fl_core.runs.round_rows import NOT_PRIVATE, Divergence, find_divergence, named_scores, round_row
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.scores import ClientSums, Scores, evaluate, evaluate_clients
from fedlm.fl_core.server_optimizers import ServerState, init_server
from fedlm.models.base import Model, Params, parameter_count
from fedlm.models.precision import Precision, precision_scope, resolve_precision, with_precision
from fedlm.simulations.data.federated_data import StoredData, device_batches, evaluation_owners, open_splits
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.engine.cohort_engine import ClientWork, CohortEngine
from fedlm.simulations.engine.cohort_samplers import Cohorts, make_cohorts
from fedlm.simulations.engine.lane_count import choose_lanes
from fedlm.simulations.evaluation.canaries import Canaries, WithCanaries, audit, draw_canaries
from fedlm.simulations.evaluation.client_scores import client_columns, write_table
from fedlm.simulations.experiments.configuration import MAY_MOVE, Experiment, as_json, with_defaults
from fedlm.simulations.experiments.federated_models import create_federated_model
from fedlm.simulations.experiments.initial_parameters import InitialParameters, read_parameters
from fedlm.simulations.experiments.run_record import finished_summary, summarise

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
      initial: parameters of an earlier run to begin with, where the settings name one.
      canaries: made-up clients, some of which are training clients, where the run is audited.
      delta: at which the epsilon of a private run is stated.
    """

    experiment: Experiment
    model: Model
    precision: Precision
    train: StoredData | WithCanaries
    heldout: StoredData
    test: StoredData
    vocabulary: str
    contents: str
    cohorts: Cohorts
    initial: InitialParameters | None
    canaries: Canaries | None
    delta: float


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

    With privacy, nothing that was made of a model is recorded, or observed, before the model is in a checkpoint and its
    release in the ledger.

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
        train = _train if experiment.privacy == "none" else _train_privately
        state, divergence, privacy = train(prepared, folder, observe)
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
            {**privacy, "audit": _audit(prepared, state.params), "initial_parameters": _initial(prepared)},
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
    create_federated_model(experiment.model)
    precision = resolve_precision(experiment.precision, jax.default_backend())
    store = TokenStore.open(experiment.data)
    splits: dict[str, Any] = open_splits(store, ("train", "heldout", "test"), experiment.length)
    canaries = None
    if experiment.audit_canaries:
        canaries = draw_canaries(
            experiment.audit_canaries,
            experiment.audit_repeats,
            experiment.length,
            store.vocabulary_size,
            experiment.seed,
        )
        splits["train"] = WithCanaries(splits["train"], canaries)
    return PreparedExperiment(
        experiment=experiment,
        model=_model(experiment.model, store.vocabulary_size, precision),
        precision=precision,
        **splits,
        vocabulary=store.fingerprint,
        contents=store.contents,
        cohorts=make_cohorts(experiment, splits["train"]),
        initial=None if experiment.init_from is None else read_parameters(experiment.init_from, store.fingerprint),
        canaries=canaries,
        delta=experiment.delta or len(splits["train"].num_examples) ** -1.1,
    )


def _train(
    prepared: PreparedExperiment, folder: RunFolder, observe: Observer
) -> tuple[ServerState, Divergence | None, dict[str, Any]]:
    experiment = prepared.experiment
    if (folder.directory / PRIVACY_FOLDER / LEDGER_FILE).exists():
        raise CheckpointError(
            f"{folder.directory}: holds a private run, and this one has privacy none; give another --out"
        )
    state, first_round = folder.resume(_fresh_state(prepared), _same_run(prepared))
    divergence = find_divergence(folder.rows)
    rounds = range(first_round, first_round if divergence else experiment.rounds)
    results = run_rounds(state, rounds, *_participants(prepared, prepared.cohorts.sampler))
    for result, row in _rounds(prepared, results, experiment.rounds):
        state, done = result.state, result.round_number + 1
        folder.append(row)
        if is_first():
            observe(folder.rows[-1], experiment.rounds)
        divergence = find_divergence(folder.rows)
        if done % experiment.checkpoint_every == 0 or done == experiment.rounds or divergence:
            folder.save(done, state, _about(prepared))
        if divergence:
            break
    return state, divergence, {"privacy": NOT_PRIVATE}


def _train_privately(
    prepared: PreparedExperiment, folder: RunFolder, observe: Observer
) -> tuple[ServerState, Divergence | None, dict[str, Any]]:
    # The libraries of privacy take a while to load.
    from fedlm.fl_core.runs.private_run import PrivateRun, known_plan, private_row
    from fedlm.simulations.experiments.private_experiment import prepare_aggregation

    experiment = prepared.experiment
    if jax.process_count() > 1:
        raise ConfigurationError(
            "a private run in several processes: the secret of its noise would have to travel between them, which "
            "is not supported; run it in one process, on as many devices as that has"
        )
    aggregation = prepare_aggregation(experiment, prepared.cohorts, prepared.delta, known_plan(folder.directory))
    seed = experiment.seed if experiment.noise_seed == "experiment" else None
    run = PrivateRun(aggregation, prepared.delta, seed, folder, _about(prepared))
    state, privacy, first_round = run.resume(_fresh_state(prepared), _same_run(prepared))
    divergence = find_divergence(folder.rows)
    rounds = range(first_round, first_round if divergence else run.end)
    sampler = run.keep_secret(prepared.cohorts.sampler)
    results = run_rounds(state, rounds, *_participants(prepared, sampler), run.rounds, privacy)
    for result, row in _rounds(prepared, results, run.end):
        state, done = result.state, result.round_number + 1
        assert result.private is not None
        run.record(row | private_row(result.private, result.cohort.aggregate))
        divergence = find_divergence(folder.rows + run.unpublished)
        if done % experiment.checkpoint_every == 0 or done == run.end or divergence:
            for published in run.publish(done, state, result.private):
                observe(published, experiment.rounds)
        if divergence:
            break
    return state, divergence, run.statement()


def _participants(
    prepared: PreparedExperiment, sampler: CohortSampler
) -> tuple[CohortEngine, CohortSampler, FederatedOptimization]:
    experiment = prepared.experiment
    optimization = FederatedOptimization(
        server=experiment.server_config(),
        server_learning_rate=experiment.server_learning_rate,
        client_learning_rate=experiment.client_learning_rate,
        seed=experiment.seed,
        server_warmup_rounds=experiment.server_warmup_rounds,
    )
    return _engine(prepared), sampler, optimization


def _rounds(
    prepared: PreparedExperiment, results: Iterator[RoundResult], end: int
) -> Iterator[tuple[RoundResult, dict[str, Any]]]:
    """Score the held-out clients when it is time, and make each round's row."""
    experiment = prepared.experiment
    heldout = list(device_batches(prepared.heldout, experiment.length, experiment.heldout_examples))
    started = time.monotonic()
    for result in results:
        row, done = round_row(result), result.round_number + 1
        if done % experiment.evaluate_every == 0 or done == end:
            row |= named_scores(evaluate(prepared.model, result.state.params, heldout), "heldout")
        started, row["seconds"] = time.monotonic(), time.monotonic() - started
        yield result, row


def _audit(prepared: PreparedExperiment, params: Params) -> dict[str, Any] | None:
    if prepared.canaries is None:
        return None
    return audit(prepared.model, _fresh_state(prepared).params, params, prepared.canaries, prepared.delta)


def _initial(prepared: PreparedExperiment) -> dict[str, Any] | None:
    return None if prepared.initial is None else prepared.initial.about()


def _score_test_clients(prepared: PreparedExperiment, params: Params) -> tuple[Scores, ClientSums]:
    examples = prepared.experiment.test_examples
    batches = device_batches(prepared.test, prepared.experiment.length, examples)
    return evaluate_clients(prepared.model, params, batches, evaluation_owners(prepared.test, examples))


def _fresh_state(prepared: PreparedExperiment) -> ServerState:
    params = prepared.model.init(device_key(prepared.experiment.seed, "init"))
    if prepared.initial is not None:
        params = prepared.initial.fit(params)
    return init_server(prepared.experiment.server_config(), params)


def _about(prepared: PreparedExperiment) -> dict[str, Any]:
    file = prepared.cohorts.file
    return {
        "experiment": as_json(prepared.experiment),
        "vocabulary": prepared.vocabulary,
        "cohort_file_sha256": file.sha256 if file else None,
        "initial_parameters_sha256": prepared.initial.sha256 if prepared.initial else None,
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


def _same_run(prepared: PreparedExperiment) -> Callable[[dict[str, Any]], None]:
    return lambda found: _check_same_run(found, _about(prepared), prepared.experiment)


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
    if found.get("initial_parameters_sha256") != wanted["initial_parameters_sha256"]:
        raise CheckpointError(
            f"the --out folder holds a run that began with other parameters than those of {experiment.init_from}; give "
            "the run it was begun with, or another --out"
        )


@functools.lru_cache(maxsize=32)
def _model(name: str, vocabulary_size: int, precision: Precision) -> Model:
    # The same object for the same model lets the next experiment of a comparison reuse compiled programs.
    return with_precision(create_federated_model(name, vocabulary_size), precision)


def _engine(prepared: PreparedExperiment) -> CohortEngine:
    experiment = prepared.experiment
    work = ClientWork(
        model=prepared.model,
        training=experiment.local_training(),
        compressor=experiment.compressor(),
        rules=experiment.aggregation_rules(),
    )
    lanes = experiment.lanes_per_device or choose_lanes(parameter_count(prepared.model), experiment.cohort_size)
    # The memory of devices, by which lanes are chosen, may differ a little between processes.
    lanes = gather(lanes)[0]
    return CohortEngine(work, prepared.train, experiment.length, lanes_per_device=lanes)
