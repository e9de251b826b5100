"""From the settings of an experiment to the values that its run works with; nothing after it reads settings."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from fedlm.fl_core.client_algorithms.interface import check_private, check_usable
from fedlm.fl_core.composed_settings import settings_as_json
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.delta import default_delta
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE, TUNING_FIELD, Phase, on_other_data
from fedlm.fl_core.privacy.origins.relevance_origin import RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin
from fedlm.fl_core.privacy.participation import Participation
from fedlm.fl_core.privacy.settings import PrivacySettings
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.reattention import ERRORS_FACT, Reattention, reattention_of, relevance_of_run
from fedlm.fl_core.rounds.round_loop import FederatedOptimization
from fedlm.fl_core.rounds.server_optimizers import ServerState
from fedlm.fl_core.runs.identity import Fact, RunIdentity, errors_fact
from fedlm.fl_core.runs.initial_parameters import InitialParameters, read_parameters
from fedlm.fl_core.runs.round_rows import Divergence, find_divergence, find_lost_score
from fedlm.models.base import Model, Params
from fedlm.models.families.reattention import ParameterErrors
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.layers.lora import LoraConfig, lora_model, merge
from fedlm.models.precision import Precision, resolve_precision, with_precision
from fedlm.models.registry import ModelEntry
from fedlm.models.special_tokens import SpecialTokens
from fedlm.models.training_shapes import check_length
from fedlm.simulations.data.federated_data import DataSet, StoredData, open_splits, refuse_completions
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.engine.cohort_engine import ClientWork
from fedlm.simulations.engine.cohort_samplers import Cohorts, make_cohorts
from fedlm.simulations.evaluation.canaries import Canaries, WithCanaries, draw_canaries
from fedlm.simulations.experiments.configuration import MAY_MOVE, Experiment
from fedlm.simulations.experiments.federated_models import create_federated_model
from fedlm.simulations.experiments.own_parts import CheckedSampler, Evaluation, OwnModel, OwnParts, build_model

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.private_rounds import PrivateAggregation
    from fedlm.fl_core.privacy.promise.number_of_trials import TrialsLaw
    from fedlm.fl_core.runs.private_releases import BegunRun


class Training(NamedTuple):
    """What a round of simulated training is made of."""

    work: ClientWork
    clients: StoredData | WithCanaries
    cohorts: Cohorts
    cohort_size: int
    length: int  # target tokens of a sequence
    optimization: FederatedOptimization
    lanes_per_device: int | None  # chosen by the devices' memory where None


class Scoring(NamedTuple):
    """What a run is scored on, and when."""

    heldout: StoredData
    heldout_examples: int
    every: int  # rounds from one score on the held-out clients to the next
    test: StoredData
    test_examples: int | None
    canaries: Canaries | None  # made-up clients, some of which contribute, where the run is audited


class Privacy(NamedTuple):
    """What a run with noise promises, and how."""

    settings: PrivacySettings
    rounds: int
    cohort_size: int
    clip_norm: float
    participation: Participation
    delta: float
    noise_seed: int | None  # None for noise that nobody can compute again
    training_data: str  # fingerprint of the training clients' text
    ancestry: tuple[Phase, ...]  # what the first parameters went through
    data: Path  # the folder of the data set, which may carry a budget
    vocabulary: VocabularyOrigin
    law: "TrialsLaw | None" = None  # of the number of trials that the run is to be chosen from
    without_users: bool = False  # whether clients are documents
    relevance: RelevanceOrigin | None = None  # that attention is corrected by; None without re-attention

    def plan(self, begun: "BegunRun | None" = None) -> "PrivateAggregation":
        """Work out what happens to the sums of rounds; `begun` is what the run that goes on has promised."""
        from fedlm.fl_core.privacy.private_plan import plan_aggregation
        from fedlm.fl_core.privacy.promise.plan import CLIENT, DOCUMENT_CLIENT

        unit = DOCUMENT_CLIENT if self.without_users else CLIENT
        return plan_aggregation(
            self.settings,
            self.rounds,
            self.cohort_size,
            self.clip_norm,
            self.participation,
            self.delta,
            begun and begun.plan,
            self.training_data,
            self.ancestry if begun is None else begun.ancestry,
            self.vocabulary if begun is None else begun.vocabulary,
            self.law,
            unit,
            self.relevance if begun is None else begun.relevance,
        )


class PreparedExperiment(NamedTuple):
    """An experiment whose settings and data have been found to fit."""

    identity: RunIdentity
    rounds: int
    save_every: int
    precision: Precision
    training: Training
    scoring: Scoring
    privacy: Privacy | None
    delta: float  # at which an audit's lower bound on epsilon, and the epsilon of a private run, are stated
    initial: InitialParameters | None  # of an earlier run to begin with, where the settings name one
    lora: LoraConfig | None  # of the adapters that are trained; None where the whole model is
    model: Model  # the whole one, with the data's vocabulary, in the policy's precision
    bounds_norms: bool  # whether updates of unusual norm, and steps that ruin the model, are guarded against
    evaluation: Evaluation | None  # a program's own scores of parameters, beside those on the held-out clients
    # decides from the rows so far whether the run has diverged
    find_divergence: Callable[[list[dict[str, Any]]], Divergence | None] = find_divergence
    reattention: Reattention | None = None  # the constants of its model; None without re-attention, or without noise

    def fresh_state(self) -> ServerState:
        """Make the server's state before the first round."""
        optimization = self.training.optimization
        params = self.training.work.model.init(device_key(optimization.seed, "init"))
        if self.initial is not None and self.lora is None:
            params = self.initial.fit(params)
        return optimization.first_state(params)

    def frozen(self, out: Path) -> Params:
        """Give the parameters that are not trained, in all processes; `out` is the run's folder."""
        if self.lora is None:
            return ()
        assert self.initial is not None
        return self.initial.frozen(jax.eval_shape(self.model.init, jax.random.key(0)), out)

    def whole(self, frozen: Params, trained: Params) -> Params:
        """Make the whole model's parameters of those that are trained, and those that are not."""
        return trained if self.lora is None else _merged(self.lora, frozen, trained)


def prepare(
    experiment: Experiment,
    own: OwnParts = OwnParts(),  # noqa: B008
    tuning: Mapping[str, Any] | None = None,
    out: Path | None = None,
) -> PreparedExperiment:
    """Open an experiment's data and build its model, touching nothing on disk.

    Args:
      own: what a program brings by object, which takes the place of what settings name.
      tuning: what the run is compared with, for its ledger.
      out: folder of the run, which may have been begun there; only read. None where nothing is to run.

    Raises:
      UserError: settings, data or objects do not fit.
    """
    if own.model is None:
        create_federated_model(experiment.model)
    settings, private = experiment.training, experiment.privacy.is_private
    if private:
        own.check_private()
    precision = resolve_precision(settings.precision, jax.default_backend())
    store = own.data or TokenStore.open(experiment.data)
    refuse_completions(store, "a simulation")
    splits: dict[str, Any] = open_splits(store, ("train", "heldout", "test"), settings.length)
    canaries = _canaries(experiment, store)
    train: Any = splits["train"] if canaries is None else WithCanaries(splits["train"], canaries)
    cohorts = make_cohorts(experiment.cohorts, train, experiment.rounds, experiment.seed)
    if own.cohort_sampler is not None:
        cohorts = Cohorts(CheckedSampler(own.cohort_sampler, len(train.num_examples)), None)
    optimization = settings.optimization(
        experiment.server_learning_rate, experiment.client_learning_rate, experiment.seed, own.server_optimizer
    )
    built = _built(own.model or experiment.model, store.vocabulary_size, store.special_tokens)
    lora = experiment.lora.lora_config()
    model, trained = _trained(built, precision, None), _trained(built, precision, lora, settings.dropout)
    if own.model is None:
        check_length(experiment.model, model, settings.length)
    local = settings.local_training()
    if lora is not None and lora.dropout:
        local = dataclasses.replace(local, draws_dropout=True)
    if own.client_algorithm is not None:
        local = dataclasses.replace(local, algorithm=own.client_algorithm)
        optimization = dataclasses.replace(optimization, algorithm=own.client_algorithm)
    like = jax.eval_shape(trained.init, jax.random.key(0))
    if private:
        check_private(local.algorithm, like)
    check_usable(local.algorithm, like)
    delta = experiment.privacy.delta or default_delta(len(train.num_examples))
    training_data = store.training_data(check=private)
    if (store.path / BUDGET_FILE).exists():
        # The libraries of privacy take a while to load.
        from fedlm.fl_core.runs.data_budget import budget_of

        budget_of(store.path, private and experiment.privacy.noise_seed == "entropy")
    initial = None
    if experiment.init_from is not None:
        initial = read_parameters(
            experiment.init_from,
            store.fingerprint,
            experiment.model,
            experiment.initial_data,
            training_data,
            # An audit asks what the run has changed of its first parameters.
            None if experiment.audit.audit_canaries else out,
        )
    privacy = _privacy(experiment, cohorts, delta, training_data, initial, store, tuning) if private else None
    reattention = None
    if own.model is None:
        privacy, reattention = _reattention(experiment, store, training_data, privacy, out)
    elif experiment.reattention.relevance is not None or hasattr(
        getattr(own.model, "config", None), "parameter_errors"
    ):
        raise ConfigurationError(
            "a model with re-attention, which needs relevance, must be given by its name, or as a file, so that the "
            "constants of the run are set; an object's are its own"
        )
    if reattention is not None:
        built = _same_model(experiment.model, store.vocabulary_size, store.special_tokens, reattention.errors)
        model, trained = _trained(built, precision, None), _trained(built, precision, lora, settings.dropout)
    settings_of_run = settings_as_json(experiment) | dict(own.labels)
    return PreparedExperiment(
        identity=_identity(settings_of_run, store, training_data, cohorts, initial, tuning, reattention),
        rounds=experiment.rounds,
        save_every=experiment.checkpoint_every,
        precision=precision,
        training=Training(
            ClientWork(
                model=trained,
                training=local,
                compressor=settings.compressor(),
                rules=settings.aggregation_rules(private),
            ),
            train,
            cohorts,
            experiment.cohorts.cohort_size,
            settings.length,
            optimization,
            experiment.lanes_per_device,
        ),
        scoring=Scoring(
            splits["heldout"],
            experiment.evaluation.heldout_examples,
            experiment.evaluation.evaluate_every,
            splits["test"],
            experiment.evaluation.test_examples,
            canaries,
        ),
        privacy=privacy,
        delta=delta,
        initial=initial,
        lora=lora,
        model=model,
        bounds_norms=settings.update_norm_bound == "adaptive",
        evaluation=own.evaluation,
        find_divergence=_divergence_of(
            private, splits, on_other_data(initial.ancestry if initial else (), training_data)
        ),
        reattention=reattention,
    )


def _divergence_of(
    private: bool, splits: Mapping[str, Any], before: Sequence[Phase]
) -> Callable[[list[dict[str, Any]]], Divergence | None]:
    """Say what tells that a run diverged: when a private one ends must follow from what was released alone, not from
    what clients sent, nor from scores on held-out examples of those who are trained on, here or by trainings on other
    data `before`, which no noise hides."""
    if not private:
        return find_divergence
    if not before and set(splits["train"].client_ids).isdisjoint(splits["heldout"].client_ids):
        return find_lost_score
    return lambda rows: None


def _reattention(
    experiment: Experiment, store: DataSet, training_data: str | None, privacy: Privacy | None, out: Path | None
) -> tuple[Privacy | None, Reattention | None]:
    """Work out the constants of a model with re-attention, of the noise that is planned; with it the run's privacy,
    which the relevances of tokens are part of."""
    relevance = relevance_of_run(
        experiment.reattention,
        experiment.model,
        privacy is not None,
        store.path,
        store.fingerprint,
        training_data,
        ("client", experiment.training.length, "none"),
        experiment.lora.lora_rank is not None,
    )
    if privacy is None or relevance is None:
        return privacy, None
    # The libraries of privacy take a while to load.
    from fedlm.fl_core.runs.private_releases import begun_in

    privacy = privacy._replace(relevance=relevance.origin)
    aggregation = privacy.plan(None if out is None else begun_in(out))
    ratio = aggregation.plan.noise_multiplier / aggregation.report_goal
    return privacy, reattention_of(relevance, experiment.reattention, ratio, experiment.seed)


def _canaries(experiment: Experiment, store: DataSet) -> Canaries | None:
    number, repeats = experiment.audit.audit_canaries, experiment.audit.audit_repeats
    if not number:
        return None
    length = experiment.training.length
    return draw_canaries(number, repeats, length, store.vocabulary_size, experiment.seed, store.special_tokens)


def _privacy(
    experiment: Experiment,
    cohorts: Cohorts,
    delta: float,
    training_data: str | None,
    initial: InitialParameters | None,
    store: DataSet,
    tuning: Mapping[str, Any] | None,
) -> Privacy:
    # The libraries of privacy take a while to load.
    from fedlm.fl_core.privacy.promise.spending import law_of

    clip_norm = experiment.training.update_clip_norm
    assert cohorts.participation is not None
    assert clip_norm is not None
    assert training_data is not None
    seed = experiment.seed if experiment.privacy.noise_seed == "experiment" else None
    cohort_size = experiment.cohorts.cohort_size
    return Privacy(
        experiment.privacy,
        experiment.rounds,
        cohort_size,
        clip_norm,
        cohorts.participation,
        delta,
        seed,
        training_data,
        initial.ancestry if initial else (),
        store.path,
        store.vocabulary_origin,
        law_of(tuning),
        store.without_users,
    )


def _identity(
    settings: dict[str, Any],
    store: DataSet,
    training_data: str | None,
    cohorts: Cohorts,
    initial: InitialParameters | None,
    tuning: Mapping[str, Any] | None,
    reattention: Reattention | None,
) -> RunIdentity:
    drawn_by = "content of the file that cohorts are drawn by"
    first = "set of first parameters"
    return RunIdentity(
        kind="experiment",
        settings=settings,
        facts={
            "vocabulary": Fact(store.fingerprint, "vocabulary", ("vocabulary_sha256",)),
            "contents": Fact(store.contents, "content of data"),
            "training_data_sha256": Fact(
                training_data, "set of training clients and their text", ("training_data_sha256",)
            ),
            "cohort_file_sha256": Fact(
                cohorts.file.sha256 if cohorts.file else None, drawn_by, ("cohort_file", "sha256")
            ),
            "initial_parameters_sha256": Fact(
                initial.sha256 if initial else None, first, ("initial_parameters", "parameters_sha256")
            ),
            ERRORS_FACT: errors_fact(reattention),
        },
        paths=MAY_MOVE,
        may_change=("rounds",),
        ancestry=initial.ancestry if initial else (),
        vocabulary=store.vocabulary_origin,
        relevance=reattention.origin if reattention else None,
        unchecked={} if tuning is None else {TUNING_FIELD: dict(tuning)},
    )


def _built(model: str | OwnModel, vocabulary_size: int, special_tokens: SpecialTokens) -> Model:
    if isinstance(model, str | ModelEntry | Model):
        return _same_model(model, vocabulary_size, special_tokens)
    # A function may make another model when it is called again.
    return build_model(model, vocabulary_size, special_tokens)


# The same object for the same model lets the next experiment of a comparison reuse compiled programs.
@functools.lru_cache(maxsize=32)
def _same_model(
    model: str | ModelEntry | Model,
    vocabulary_size: int,
    special_tokens: SpecialTokens,
    errors: ParameterErrors | None = None,
) -> Model:
    if isinstance(model, str):
        return create_federated_model(model, vocabulary_size, special_tokens, errors)
    return build_model(model, vocabulary_size, special_tokens)


@functools.lru_cache(maxsize=32)
def _trained(model: Model, precision: Precision, lora: LoraConfig | None, dropout: float = 0.0) -> Model:
    model = with_dropout(model, dropout)
    return with_precision(model if lora is None else lora_model(model, lora), precision)


_merged = jax.jit(merge, static_argnums=0)
