"""One experiment from beginning to end: resume, rounds, scores, checkpoints, summary."""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from fedlm.fl_core.cohorts import CohortSampler
from fedlm.fl_core.composed_settings import settings_as_json
from fedlm.fl_core.privacy.private_cohorts import PoissonSampler
from fedlm.fl_core.processes import gather, is_first, together
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.round_loop import FederatedOptimization
from fedlm.fl_core.runs.driver import Run
from fedlm.fl_core.runs.federated_training import FederatedTraining
from fedlm.fl_core.runs.identity import Fact, RunIdentity
from fedlm.fl_core.runs.initial_parameters import InitialParameters, read_parameters
from fedlm.fl_core.runs.round_rows import Divergence, find_divergence, named_scores
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.runs.summary import describe_training
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
from fedlm.simulations.evaluation.client_scores import client_columns, describe_clients, write_table
from fedlm.simulations.experiments.configuration import MAY_MOVE, Experiment, with_defaults
from fedlm.simulations.experiments.federated_models import create_federated_model

if TYPE_CHECKING:
    from fedlm.fl_core.privacy.plan import PrivacyPlan
    from fedlm.fl_core.privacy.private_rounds import PrivateAggregation
    from fedlm.fl_core.runs.private_releases import PrivacyTerms

Observer = Callable[[dict[str, Any], int], None]
"""Called with the metrics row of each round and the number of rounds in all."""


class PreparedExperiment(NamedTuple):
    """An experiment whose settings and data have been found to fit."""

    experiment: Experiment
    model: Model  # with the data's vocabulary, in the policy's precision
    precision: Precision
    train: StoredData | WithCanaries
    heldout: StoredData
    test: StoredData
    vocabulary: str  # fingerprint of the data's tokenizer
    contents: str
    cohorts: Cohorts
    initial: InitialParameters | None  # parameters of an earlier run to begin with, where the settings name one
    canaries: Canaries | None  # made-up clients, some of which are training clients, where the run is audited
    delta: float  # at which the epsilon of a private run is stated


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
      out: folder of the run; made where absent.
      observe: see `Observer`; called in the first process.
      save_client_scores: write `test_clients.parquet` too, a row a test client.

    Raises:
      UserError: settings, data or an earlier run in `out` do not fit, or processes differ in them.
    """
    prepared = together(lambda: prepare(experiment))
    identity = _identity(prepared)
    identity.check_same_in_all_processes(prepared.precision)
    finished = gather(together(lambda: _finished(identity, out, save_client_scores)))[0]
    if finished is not None:
        return finished
    with precision_scope(prepared.precision), RunFolder(out) as folder:
        aggregation, terms = _privacy(prepared, folder)
        run = Run(folder, identity, experiment.rounds, experiment.checkpoint_every, find_divergence, terms)
        training = FederatedTraining(run, _optimization(experiment), _fresh_state(prepared), aggregation)
        heldout = list(
            device_batches(prepared.heldout, experiment.training.length, experiment.evaluation.heldout_examples)
        )
        rounds = training.rounds(
            _engine(prepared),
            _sampler(prepared, run.standing.draw_seed),
            lambda params: named_scores(evaluate(prepared.model, params, heldout), "heldout"),
            experiment.evaluation.evaluate_every,
        )
        run.take(rounds, lambda row: observe(row, experiment.rounds))
        params = training.server.params
        test, clients = _score_test_clients(prepared, params)
        if is_first():
            table = client_columns(clients, prepared.test.client_ids) if save_client_scores else None
            _write_table(out / _TABLE, table)
        return _finish(run, prepared, params, test, clients)


def _finished(identity: RunIdentity, out: Path, save_client_scores: bool) -> dict[str, Any] | None:
    if not is_first() or (save_client_scores and not (out / _TABLE).exists()):
        return None
    return identity.finished_summary(out, "rounds")


def _write_table(path: Path, table: dict[str, Any] | None) -> None:
    if table is not None:
        write_table(path, table)
    else:
        # A table from before would be of other parameters than the summary.
        path.unlink(missing_ok=True)


def _finish(
    run: Run, prepared: PreparedExperiment, params: Params, test: Scores, clients: ClientSums
) -> dict[str, Any]:
    rows, experiment, model, file = run.folder.rows, prepared.experiment, prepared.model, prepared.cohorts.file
    heldout = next((row["heldout_loss"] for row in reversed(rows) if "heldout_loss" in row), None)
    if run.divergence is None and heldout is not None and heldout > math.log(model.vocabulary_size):
        run.divergence = Divergence(rows[-1]["round"], "the held-out loss ended above that of a uniform guess")
    return run.finish(
        params,
        {
            "diverged_at_round": run.divergence.round_number if run.divergence else None,
            **describe_training(model, prepared.precision, rows, test),
            "test_clients": describe_clients(clients),
            **{name: sum(row[name] for row in rows) for name in ("clients_dropped", "bytes_down", "bytes_up")},
            "audit": _audit(prepared, params),
            "initial_parameters": prepared.initial.about() if prepared.initial else None,
            "experiment": settings_as_json(experiment),
            "vocabulary_sha256": prepared.vocabulary,
            "cohort_file": file._asdict() if file else None,
        },
    )


def prepare(experiment: Experiment) -> PreparedExperiment:
    """Open an experiment's data and build its model, touching nothing on disk. Returns what `run_experiment` works
    with. Raises UserError where settings or data do not fit."""
    create_federated_model(experiment.model)
    precision = resolve_precision(experiment.training.precision, jax.default_backend())
    store = TokenStore.open(experiment.data)
    splits: dict[str, Any] = open_splits(store, ("train", "heldout", "test"), experiment.training.length)
    canaries = None
    if experiment.audit.audit_canaries:
        canaries = draw_canaries(
            experiment.audit.audit_canaries,
            experiment.audit.audit_repeats,
            experiment.training.length,
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
        cohorts=make_cohorts(experiment.cohorts, splits["train"], experiment.rounds, experiment.seed),
        initial=None if experiment.init_from is None else read_parameters(experiment.init_from, store.fingerprint),
        canaries=canaries,
        delta=experiment.privacy.delta or len(splits["train"].num_examples) ** -1.1,
    )


def _identity(prepared: PreparedExperiment) -> RunIdentity:
    experiment, file, initial = prepared.experiment, prepared.cohorts.file, prepared.initial
    drawn_by = "content of the file that cohorts are drawn by"
    first = "set of first parameters"
    return RunIdentity(
        kind="experiment",
        settings=settings_as_json(experiment),
        facts={
            "vocabulary": Fact(prepared.vocabulary, "vocabulary", ("vocabulary_sha256",)),
            "contents": Fact(prepared.contents, "content of data", since_ever=False),
            "cohort_file_sha256": Fact(file.sha256 if file else None, drawn_by, ("cohort_file", "sha256")),
            "initial_parameters_sha256": Fact(
                initial.sha256 if initial else None, first, ("initial_parameters", "parameters_sha256")
            ),
        },
        paths=MAY_MOVE,
        may_change=("rounds",),
        complete=with_defaults,
    )


def _privacy(
    prepared: PreparedExperiment, folder: RunFolder
) -> "tuple[PrivateAggregation | None, PrivacyTerms | None]":
    experiment = prepared.experiment
    if not experiment.privacy.is_private:
        return None, None
    # The libraries of privacy take a while to load.
    from fedlm.fl_core.runs.private_releases import PrivacyTerms, known_plan

    known = known_plan(folder)
    aggregation = together(lambda: plan_private_rounds(prepared, known))
    # All processes draw the same noise, by the plan of the first: an optimized matrix may differ in its last bits.
    plan = aggregation.plan.from_json(gather(aggregation.plan.as_json())[0])
    seed = experiment.seed if experiment.privacy.noise_seed == "experiment" else None
    return dataclasses.replace(aggregation, plan=plan), PrivacyTerms(plan, prepared.delta, seed)


def plan_private_rounds(prepared: PreparedExperiment, known: "PrivacyPlan | None" = None) -> "PrivateAggregation":
    """Work out what a private experiment does with the sums of its rounds; see `plan_aggregation`."""
    from fedlm.fl_core.privacy.private_plan import plan_aggregation

    experiment, participation = prepared.experiment, prepared.cohorts.participation
    assert participation is not None
    assert experiment.training.update_clip_norm is not None
    rounds, cohort, clip_norm = experiment.rounds, experiment.cohorts.cohort_size, experiment.training.update_clip_norm
    return plan_aggregation(experiment.privacy, rounds, cohort, clip_norm, participation, prepared.delta, known)


def _sampler(prepared: PreparedExperiment, draw_seed: int | None) -> CohortSampler:
    sampler = prepared.cohorts.sampler
    if draw_seed is None or not isinstance(sampler, PoissonSampler):
        return sampler
    # Its privacy relies on nobody knowing who takes part.
    return dataclasses.replace(sampler, seed=draw_seed)


def _optimization(experiment: Experiment) -> FederatedOptimization:
    return FederatedOptimization(
        server=experiment.training.server_config(),
        server_learning_rate=experiment.server_learning_rate,
        client_learning_rate=experiment.client_learning_rate,
        seed=experiment.seed,
        server_warmup_rounds=experiment.training.server_warmup_rounds,
    )


def _audit(prepared: PreparedExperiment, params: Params) -> dict[str, Any] | None:
    if prepared.canaries is None:
        return None
    return audit(prepared.model, _fresh_state(prepared).params, params, prepared.canaries, prepared.delta)


def _score_test_clients(prepared: PreparedExperiment, params: Params) -> tuple[Scores, ClientSums]:
    examples = prepared.experiment.evaluation.test_examples
    batches = device_batches(prepared.test, prepared.experiment.training.length, examples)
    return evaluate_clients(prepared.model, params, batches, evaluation_owners(prepared.test, examples))


def _fresh_state(prepared: PreparedExperiment) -> ServerState:
    params = prepared.model.init(device_key(prepared.experiment.seed, "init"))
    if prepared.initial is not None:
        params = prepared.initial.fit(params)
    return init_server(prepared.experiment.training.server_config(), params)


_TABLE = "test_clients.parquet"


@functools.lru_cache(maxsize=32)
def _model(name: str, vocabulary_size: int, precision: Precision) -> Model:
    # The same object for the same model lets the next experiment of a comparison reuse compiled programs.
    return with_precision(create_federated_model(name, vocabulary_size), precision)


def _engine(prepared: PreparedExperiment) -> CohortEngine:
    experiment = prepared.experiment
    work = ClientWork(
        model=prepared.model,
        training=experiment.training.local_training(),
        compressor=experiment.training.compressor(),
        rules=experiment.training.aggregation_rules(experiment.privacy.is_private),
    )
    lanes = experiment.lanes_per_device or choose_lanes(parameter_count(prepared.model), experiment.cohorts.cohort_size)
    # The memory of devices, by which lanes are chosen, may differ a little between processes.
    lanes = gather(lanes)[0]
    return CohortEngine(work, prepared.train, experiment.training.length, lanes_per_device=lanes)
