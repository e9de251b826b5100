"""From the settings of an experiment to the values that its run works with; nothing after it reads settings."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedlm.fl_core.client_algorithms.interface import check_private, check_usable, sent_by_client
from fedlm.fl_core.composed_settings import idle_names, settings_as_json
from fedlm.fl_core.exact_sums import number_of_coordinates
from fedlm.fl_core.privacy.accounting.delta import default_delta
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.rounds.round_loop import FederatedOptimization, PlainAveraging
from fedlm.fl_core.rounds.server_optimizers import ServerState
from fedlm.fl_core.runs.capabilities.interface import Builder, Capability, Clipped, Opening
from fedlm.fl_core.runs.capabilities.run_capabilities import Capabilities
from fedlm.fl_core.runs.identity import Fact, RunIdentity
from fedlm.fl_core.runs.round_rows import Divergence, find_divergence
from fedlm.fl_core.updates.registry import make_compressor
from fedlm.models.base import Model, Params
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.precision import Precision, resolve_precision, with_precision
from fedlm.simulations.data.federated_data import DataSet, StoredData, open_splits, refuse_completions
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.engine.cohort_engine import ClientWork
from fedlm.simulations.engine.cohort_samplers import Cohorts, make_cohorts
from fedlm.simulations.experiments.capabilities import CAPABILITIES
from fedlm.simulations.experiments.configuration import MAY_MOVE, EvaluationSettings, Experiment
from fedlm.simulations.experiments.federated_models import named_builder
from fedlm.simulations.experiments.simulated_privacy import Privacy


class Training(NamedTuple):
    """What a round of simulated training is made of."""

    work: ClientWork
    clients: Any  # a `FederatedData` with `client_ids`
    cohorts: Cohorts
    cohort_size: int
    length: int  # target tokens of a sequence
    optimization: FederatedOptimization
    averaging: PlainAveraging  # without privacy
    lanes_per_device: int | None  # chosen by the devices' memory where None


class Scoring(NamedTuple):
    """What a run is scored on, and when."""

    heldout: StoredData
    test: StoredData
    settings: EvaluationSettings

    def of(self, split: str) -> tuple[StoredData, int | None]:
        """Give a split, heldout or test, and how many of its examples are scored; None for all."""
        held_out = self.heldout, self.settings.heldout_examples
        return held_out if split == "heldout" else (self.test, self.settings.test_examples)


class PreparedExperiment(NamedTuple):
    """An experiment whose settings and data have been found to fit."""

    identity: RunIdentity
    rounds: int
    save_every: int
    precision: Precision
    training: Training
    scoring: Scoring
    privacy: Privacy | None
    delta: float  # at which bounds on epsilon are stated
    model: Model  # the whole one, with the data's vocabulary, in the policy's precision
    capabilities: Capabilities
    # decides from the rows so far whether the run has diverged
    find_divergence: Callable[[list[dict[str, Any]]], Divergence | None] = find_divergence

    def fresh_state(self) -> ServerState:
        """Make the server's state before the first round."""
        optimization = self.training.optimization
        params = self.training.work.model.init(device_key(optimization.seed, "init"))
        return optimization.first_state(self.capabilities.first(params))

    def frozen(self, out: Path) -> Params:
        """Give the parameters that are not trained, in all processes; `out` is the run's folder."""
        return self.capabilities.frozen(jax.eval_shape(self.model.init, jax.random.key(0)), out)


class _Opened(NamedTuple):
    """What settings and a program name, opened."""

    store: DataSet
    splits: dict[str, Any]  # `StoredData` by name
    training_data: str | None  # fingerprint of the training clients' text
    build: Builder
    capabilities: Capabilities

    def planned(self, noise_ratio: Callable[[], float]) -> "_Opened":
        """Let capabilities know the noise of the plan."""
        return self._replace(capabilities=self.capabilities.planned(noise_ratio))

    def built(self) -> Model:
        """Build the model for the data."""
        constants = self.capabilities.constants()
        return self.build(self.store.vocabulary_size, self.store.special_tokens, **constants)


class _Clients(NamedTuple):
    """Who is trained on, and who takes part in which round."""

    data: Any  # see `Training.clients`
    cohorts: Cohorts


def prepare(experiment: Experiment, brought: Sequence[Capability] = (), out: Path | None = None) -> PreparedExperiment:
    """Open an experiment's data and build its model, touching nothing on disk.

    Args:
      brought: what a program adds to what settings name.
      out: folder of the run, which may have been begun there; only read. None where nothing is to run.

    Raises:
      UserError: settings, data or objects do not fit.
    """
    opened = _open(experiment, brought, out)
    clients = _clients(experiment, opened)
    people = (
        len(clients.data.num_examples) * (experiment.privacy.noise_cohort_size or 0) / experiment.cohorts.cohort_size
    )
    delta = experiment.privacy.delta or default_delta(max(people, len(clients.data.num_examples)))
    privacy = _privacy(experiment, opened, clients.cohorts, delta) if experiment.privacy.is_private else None
    if privacy is not None:
        opened = opened.planned(functools.partial(privacy.noise_ratio, out))
    precision = resolve_precision(experiment.training.precision, jax.default_backend())
    built = opened.built()
    return PreparedExperiment(
        identity=_identity(experiment, opened),
        rounds=experiment.rounds,
        save_every=experiment.checkpoint_every,
        precision=precision,
        training=_training(experiment, opened, built, clients),
        scoring=Scoring(opened.splits["heldout"], opened.splits["test"], experiment.evaluation),
        privacy=privacy,
        delta=delta,
        model=_in_precision(built, precision),
        capabilities=opened.capabilities,
        find_divergence=find_divergence if privacy is None else privacy.find_divergence(opened.splits),
    )


def _open(experiment: Experiment, brought: Sequence[Capability], out: Path | None) -> _Opened:
    given, private, length = Capabilities((), brought), experiment.privacy.is_private, experiment.training.length
    build = given.builder() or named_builder(experiment.model, length)
    store = given.store() or TokenStore.open(experiment.data)
    refuse_completions(store, "a simulation")
    splits = open_splits(store, ("train", "heldout", "test"), length)
    training_data = store.training_data(check=private)
    opening = Opening(
        settings=experiment,
        private=private,
        secret=experiment.privacy.noise_seed == "entropy" and experiment.privacy.noise_cohort_size is None,
        vocabulary=store.fingerprint,
        data=store,
        training_data=training_data,
        clipped=Clipped("client", length, "none"),
        brought=tuple(brought),
        folder=out,
    )
    return _Opened(store, splits, training_data, build, Capabilities.read(CAPABILITIES, opening))


def _clients(experiment: Experiment, opened: _Opened) -> _Clients:
    train: Any = opened.capabilities.data(opened.splits["train"])
    cohorts = make_cohorts(experiment.cohorts, train, experiment.rounds, experiment.seed)
    return _Clients(train, opened.capabilities.cohorts(cohorts, len(train.num_examples)))


def _training(experiment: Experiment, opened: _Opened, built: Model, clients: _Clients) -> Training:
    """Say what clients and server do, with a model."""
    settings, private, capabilities = experiment.training, experiment.privacy.is_private, opened.capabilities
    distributed = experiment.privacy.is_distributed  # whose integers are what travels
    precision = resolve_precision(settings.precision, jax.default_backend())
    trained = _in_precision(capabilities.trained(_dropping(built, settings.dropout)), precision)
    local = settings.local_training()
    local = capabilities.local(dataclasses.replace(local, draws_dropout=local.draws_dropout or capabilities.drops()))
    like = jax.eval_shape(trained.init, jax.random.key(0))
    if private:
        check_private(local.algorithm, like)
    check_usable(local.algorithm, like)
    rates = experiment.server_learning_rate, experiment.client_learning_rate
    return Training(
        work=ClientWork(
            model=trained,
            training=local,
            compressor=settings.compressor() if not distributed else make_compressor("float32"),
            rules=dataclasses.replace(settings.aggregation_rules(private), exact=private and not distributed),
        ),
        clients=clients.data,
        cohorts=clients.cohorts,
        cohort_size=experiment.cohorts.cohort_size,
        length=settings.length,
        optimization=capabilities.optimization(settings.optimization(*rates, experiment.seed)),
        averaging=capabilities.averaging(settings.averaging()),
        lanes_per_device=experiment.lanes_per_device,
    )


def _privacy(experiment: Experiment, opened: _Opened, cohorts: Cohorts, delta: float) -> Privacy:
    # The libraries of privacy take a while to load.
    from fedlm.fl_core.privacy.private_plan import Beside, PlannedRounds
    from fedlm.fl_core.privacy.promise.plan import CLIENT, DOCUMENT_CLIENT

    clip_norm, store, capabilities = experiment.training.update_clip_norm, opened.store, opened.capabilities
    assert cohorts.participation is not None
    assert clip_norm is not None
    assert opened.training_data is not None
    rounds = PlannedRounds(
        rounds=experiment.rounds,
        cohort_size=experiment.cohorts.cohort_size,
        clip_norm=clip_norm,
        participation=cohorts.participation,
        delta=delta,
        unit=DOCUMENT_CLIENT if store.without_users else CLIENT,
        noise_cohort_size=experiment.privacy.noise_cohort_size,
        coordinates=_coordinates(experiment, opened),
    )
    origins = capabilities.origins(Origins(vocabulary=store.vocabulary_origin))
    beside = Beside(origins, opened.training_data, capabilities.law())
    seed = experiment.seed if experiment.privacy.noise_seed == "experiment" else None
    return Privacy(experiment.privacy, rounds, beside, seed)


def _coordinates(experiment: Experiment, opened: _Opened) -> int:
    """Count the numbers of an update, where the noise depends on them; what noise decides about a model does not."""
    if not experiment.privacy.is_distributed:
        return 0
    built = opened.build(opened.store.vocabulary_size, opened.store.special_tokens)
    like = jax.eval_shape(opened.capabilities.trained(built).init, jax.random.key(0))
    algorithm = opened.capabilities.local(experiment.training.local_training()).algorithm
    return number_of_coordinates(sent_by_client(algorithm, like))


def _identity(experiment: Experiment, opened: _Opened) -> RunIdentity:
    store, capabilities = opened.store, opened.capabilities
    of_clients = "set of training clients and their text"
    return RunIdentity(
        kind="experiment",
        settings=capabilities.recorded(settings_as_json(experiment)),
        facts={
            "vocabulary": Fact(store.fingerprint, "vocabulary", ("vocabulary_sha256",)),
            "contents": Fact(store.contents, "content of data"),
            "training_data_sha256": Fact(opened.training_data, of_clients, ("training_data_sha256",)),
            **capabilities.named_facts(),
        },
        paths=MAY_MOVE,
        may_change=("rounds", *idle_names(experiment)),
        origins=capabilities.origins(Origins(vocabulary=store.vocabulary_origin)),
        unchecked=capabilities.about(),
    )


# The same object for the same model lets the next experiment of a comparison reuse compiled programs.
_dropping = functools.lru_cache(maxsize=32)(with_dropout)
_in_precision = functools.lru_cache(maxsize=32)(with_precision)
