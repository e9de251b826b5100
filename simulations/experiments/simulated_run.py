"""The rounds of one experiment in the folder of its run, what they are scored on, and how they end."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.extras import extra
from fedlm.fl_core.privacy.private_cohorts import PoissonSampler
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.processes import gather, is_first, together
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.rounds.cohorts import CohortSampler
from fedlm.fl_core.rounds.scores import ClientSums, Scores, evaluate, evaluate_clients
from fedlm.fl_core.runs.capabilities.interface import Ended
from fedlm.fl_core.runs.driver import Run, Step
from fedlm.fl_core.runs.federated_training import FederatedTraining
from fedlm.fl_core.runs.round_rows import find_worse_than_guess, named_scores
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.runs.summary import describe_training
from fedlm.models.base import Batch, Params, parameter_count
from fedlm.simulations.data.federated_data import device_batches, evaluation_owners
from fedlm.simulations.engine.cohort_engine import CohortEngine
from fedlm.simulations.engine.compiling import begin_compiling
from fedlm.simulations.engine.lane_count import choose_lanes, copies_beyond_sgd
from fedlm.simulations.evaluation.client_scores import describe_clients
from fedlm.simulations.experiments.kept_by_clients import KeptByClients
from fedlm.simulations.experiments.preparation import PreparedExperiment, Training

if TYPE_CHECKING:
    from fedlm.fl_core.privacy.distributed_rounds import BeginSum
    from fedlm.fl_core.privacy.private_rounds import PrivateAggregation
    from fedlm.fl_core.runs.private_releases import PrivacyTerms


class SimulatedRun:
    """An experiment in its folder.

    Attributes:
      run: in which rounds are recorded.
    """

    def __init__(self, prepared: PreparedExperiment, folder: RunFolder):
        """Begin, or go back to the newest checkpoint."""
        self._prepared, self._folder = prepared, folder
        private = None if prepared.privacy is None else _privacy(prepared, folder)
        aggregation, terms = private or (None, None)
        self._terms: PrivacyTerms | None = terms
        self.run = Run(
            folder,
            prepared.identity,
            steps=prepared.rounds,
            save_every=prepared.save_every,
            find_divergence=prepared.find_divergence,
            privacy=self._terms,
        )
        self._frozen = prepared.frozen(folder.directory)
        self._engine = _engine(prepared.training, self._frozen)
        self._wait_for_programs = _begin_compiling(prepared, self._engine)
        self._training = FederatedTraining(
            self.run,
            prepared.training.optimization,
            prepared.fresh_state(),
            aggregation,
            averaging=prepared.training.averaging,
            goes_back=prepared.capabilities.undoes(),
        )
        prepared.capabilities.keep(folder.directory)
        rounds, params = self.run.standing.checkpoint, self._training.server.params
        self._kept = KeptByClients(prepared, folder, rounds, params)
        self._engine.states = self._kept.states

    @property
    def params(self) -> Params:
        """The newest parameters of the whole model."""
        return self._whole(self._training.server.params)

    def _whole(self, trained: Params) -> Params:
        return self._prepared.capabilities.whole(self._frozen, trained)

    def is_newest(self, row: dict[str, Any]) -> bool:
        """Say whether a row is of the round that `params` come from: with privacy several rows are shown at once, and
        the model that was released is that of the last."""
        return bool(row["round"] == self._training.rounds_done - 1)

    def rounds(self) -> Iterator[Step]:
        """Run the rounds that are left."""
        training, scoring = self._prepared.training, self._prepared.scoring
        heldout = list(device_batches(scoring.heldout, training.length, scoring.settings.heldout_examples))
        secret = _secret_of_cohorts(training.cohorts.sampler, self.run.standing.draw_seed)
        self._wait_for_programs()
        return self._training.rounds(
            self._training.simulated(self._engine, _masking(self._prepared)),
            _sampler(training.cohorts.sampler, secret, self._terms),
            lambda trained: (
                _scores(self._prepared, heldout, self._whole(trained))
                | self._kept.scores("heldout", self._training.server._replace(params=trained), self._whole)
            ),
            scoring.settings.evaluate_every,
            secret=secret,
        )

    def save(self) -> None:
        """Save the newest state."""
        self.run.save(self._training.rounds_done, self._training.checkpoint())

    def test(self) -> tuple[Scores, ClientSums]:
        """Score the newest parameters on the test clients, together and each."""
        scoring, length = self._prepared.scoring, self._prepared.training.length
        batches = device_batches(scoring.test, length, scoring.settings.test_examples)
        owners = evaluation_owners(scoring.test, scoring.settings.test_examples)
        return evaluate_clients(self._prepared.model, self.params, batches, owners)

    def finish(self, test: Scores, clients: ClientSums, more: dict[str, Any]) -> dict[str, Any]:
        """Write the summary, with these scores and more facts."""
        prepared, rows = self._prepared, self._folder.rows
        ended = Ended(
            prepared.model,
            lambda: self._whole(prepared.fresh_state().params),
            lambda: self.params,
            prepared.delta,
        )
        self.run.divergence = self.run.divergence or find_worse_than_guess(rows, prepared.model.vocabulary_size)
        facts = more | self._participation() | _facts(prepared, rows, test, clients)
        facts |= self._kept.summary(self._training.server, self._whole)
        return self.run.finish(self._training.server.params, facts | prepared.capabilities.summary(ended))

    def _participation(self) -> dict[str, Any]:
        record = None if self._terms is None else self._terms.participation
        if record is None:
            return {}
        return {"participation": record.beside_plan(self._training.rounds_done, self._prepared.rounds)}


def _scores(prepared: PreparedExperiment, heldout: list[Batch], params: Params) -> dict[str, Any]:
    scores = named_scores(evaluate(prepared.model, params, heldout), "heldout")
    own = prepared.capabilities.scores(prepared.model, copied(params))
    if taken := own.keys() & scores.keys():
        raise ConfigurationError(f"evaluation gave {', '.join(sorted(taken))}, which is there already; name it else")
    return scores | own


def copied(params: Params) -> Params:
    """Make containers of one's own around the same arrays, which nothing can write to."""
    return jax.tree_util.tree_map(lambda leaf: leaf, params)


def _privacy(prepared: PreparedExperiment, folder: RunFolder) -> "tuple[PrivateAggregation, PrivacyTerms]":
    # The libraries of privacy take a while to load.
    from fedlm.fl_core.privacy.record.participation_record import PARTICIPATION_FILE, ParticipationRecord
    from fedlm.fl_core.runs.private_releases import PrivacyTerms, begun_run, planned_training

    privacy, record = prepared.privacy, None
    assert privacy is not None
    limits = privacy.rounds.participation.limits()
    if is_first() and limits is not None:
        path, clients = folder.directory / PRIVACY_FOLDER / PARTICIPATION_FILE, prepared.training.clients
        record = ParticipationRecord(path, clients.client_ids, limits)
    begun = begun_run(folder)
    aggregation = together(lambda: privacy.plan(begun))
    # All processes draw the same noise, by the plan of the first: an optimized matrix may differ in its last bits.
    plan = aggregation.plan.from_json(gather(aggregation.plan.as_json())[0])
    origins = privacy.beside.origins if begun is None else begun.origins
    training = planned_training("simulate", folder.directory, plan, privacy.beside.training_data)
    reservation = prepared.capabilities.reservation(training, origins)
    terms = PrivacyTerms(plan, prepared.delta, privacy.noise_seed, participation=record, reservation=reservation)
    return dataclasses.replace(aggregation, plan=plan), terms


def _masking(prepared: PreparedExperiment) -> "BeginSum | None":
    if prepared.privacy is None or not prepared.privacy.settings.masks:
        return None
    with extra("deploy"):
        # What a server is made of takes a while to load.
        from fedlm.simulations.engine.masked_sums import MaskedCohorts
    return MaskedCohorts()


def _secret_of_cohorts(sampler: CohortSampler, draw_seed: str | None) -> bytes | None:
    # Independently drawn clients may be added or removed, and their privacy relies on nobody knowing who takes part.
    return bytes.fromhex(draw_seed) if draw_seed is not None and isinstance(sampler, PoissonSampler) else None


def _sampler(sampler: CohortSampler, secret: bytes | None, terms: "PrivacyTerms | None") -> CohortSampler:
    if terms is not None and terms.participation is not None:
        from fedlm.fl_core.privacy.record.participation_record import RecordedSampler

        return RecordedSampler(sampler, terms.participation)
    return sampler if secret is None else dataclasses.replace(sampler, seed=secret)  # type: ignore[type-var]


def _engine(training: Training, frozen: Params) -> CohortEngine:
    # What is frozen takes no room in a lane, but activations do, of which nothing else tells.
    parameters = parameter_count(training.work.model) + sum(leaf.size for leaf in jax.tree_util.tree_leaves(frozen))
    more = copies_beyond_sgd(training.work.training.algorithm, training.work.model)
    steps = training.work.training.count_steps(training.clients.num_examples)
    lanes = training.lanes_per_device or choose_lanes(parameters, training.cohort_size, steps, more_copies=more)
    # The memory of devices, by which lanes are chosen, may differ a little between processes.
    lanes_per_device = gather(lanes)[0]
    return CohortEngine(
        training.work,
        training.clients,
        training.length,
        lanes_per_device=lanes_per_device,
        frozen=frozen,
    )


def _begin_compiling(prepared: PreparedExperiment, engine: CohortEngine) -> Callable[[], None]:
    if prepared.privacy is not None:
        return lambda: None
    training = prepared.training
    optimization, averaging = training.optimization, training.averaging
    key = device_key(optimization.seed, "init")
    return begin_compiling(
        engine,
        optimization,
        lambda: optimization.first_state(training.work.model.init(key)),
        clip_norm=averaging.clip_norm(averaging.init()),
        precision=prepared.precision,
    )


def _facts(
    prepared: PreparedExperiment, rows: list[dict[str, Any]], test: Scores, clients: ClientSums
) -> dict[str, Any]:
    model, identity = prepared.model, prepared.identity
    return {
        **describe_training(model, prepared.precision, rows, test),
        "trained_parameters": parameter_count(prepared.training.work.model),
        "test_clients": describe_clients(clients),
        **{name: sum(row[name] for row in rows) for name in ("clients_dropped", "bytes_down", "bytes_up")},
        "experiment": identity.settings,
        "vocabulary_sha256": identity.facts["vocabulary"].value,
        "training_data_sha256": identity.facts["training_data_sha256"].value,
    }
