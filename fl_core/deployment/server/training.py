"""The rounds of a deployment: those of a simulation, with clients that dial in.

With privacy every round's model is in a checkpoint, and in the ledger, before any client can download it.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from fedlm.fl_core.client_algorithms.evaluate import Evaluate
from fedlm.fl_core.composed_settings import idle_names, path_settings, settings_as_json
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.secure_aggregation.attempts_sql import SecureAttempts
from fedlm.fl_core.deployment.server.capabilities import CAPABILITIES
from fedlm.fl_core.deployment.server.planned_privacy import check_sizes, planned_privacy
from fedlm.fl_core.deployment.server.reports.summed_integers import NoisedSums
from fedlm.fl_core.deployment.server.round_rules import DrainedError
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.server.task import Task
from fedlm.fl_core.deployment.state.retrying import with_retries
from fedlm.fl_core.deployment.state.run_names import CommonState, run_name
from fedlm.fl_core.deployment.state.state import OtherStateError, ReleaseRecord
from fedlm.fl_core.deployment.state.state_sql import SqlState
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.rounds.aggregation import WeightedMean
from fedlm.fl_core.rounds.cohorts import WhoeverChecksIn
from fedlm.fl_core.rounds.round_loop import CohortRunner
from fedlm.fl_core.rounds.tracing import round_trace, span
from fedlm.fl_core.runs.capabilities.interface import Opening
from fedlm.fl_core.runs.capabilities.run_capabilities import Capabilities
from fedlm.fl_core.runs.driver import Observer, Run, Step
from fedlm.fl_core.runs.evaluation import BETTER, WORSE, Interval, evaluation_of
from fedlm.fl_core.runs.federated_training import FederatedTraining
from fedlm.fl_core.runs.identity import Fact, RunIdentity
from fedlm.fl_core.runs.round_rows import find_divergence, find_worse_than_guess
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.runs.summary import describe_training
from fedlm.models.base import Params
from fedlm.models.precision import resolve_precision

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.private_rounds import PrivateAggregation
    from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
    from fedlm.fl_core.runs.capabilities.data_budget import Reservation
    from fedlm.fl_core.runs.private_releases import PrivacyTerms


class DeployedTraining:
    """A run whose clients dial in; used in one thread."""

    def __init__(self, task: Task, folder: RunFolder, state: SqlState):
        """Find out where the run stands. Raises UserError where settings, folder and state do not belong together."""
        deployment = task.deployment
        self._task, self._state, self._sampler = task, state, task.sampler or WhoeverChecksIn()
        with folder.fence():
            name = run_name(folder.directory)
        capabilities = Capabilities.read(CAPABILITIES, _opening(task, folder.directory))
        self._reference = _reference(task)
        self._identity = _identity(task, name, capabilities, self._reference)
        state.claim(name)
        aggregation, terms = _privacy(task, folder, self._identity)
        self._aggregation = aggregation
        secure = deployment.aggregation == "secure"
        if secure:
            with_retries(SecureAttempts(state.database).settle)
        self._run = Run(
            folder,
            self._identity,
            steps=deployment.rounds,
            save_every=deployment.saved_every,
            # When a private run ends must follow from what was released alone: not from what clients sent, nor from
            # scores on held-out text, which may be that of clients, since nobody knows who these are. What is scored
            # alone does not diverge.
            find_divergence=find_divergence if terms is None and not deployment.evaluates else lambda rows: None,
            privacy=terms,
            common=CommonState(state),
            # The ledger of a private run says itself what was seen.
            seen=with_retries(state.finished_rounds) if secure and terms is None else 0,
        )
        self._training = _training(task, self._run, capabilities, aggregation)
        self._agree_with_state(self._training.rounds_done)

    @property
    def noised(self) -> NoisedSums | None:
        """The sums of a run whose clients add noise; None of others."""
        if self._aggregation is None or not self._task.deployment.privacy.is_distributed:
            return None
        plan, mechanism = self._aggregation.plan, MECHANISMS[self._aggregation.plan.mechanism]
        lattice = mechanism.lattice(plan, self._aggregation.clip_norm)
        return NoisedSums(lattice, lambda number: self._run.see(number + 1))

    @property
    def params(self) -> Params:
        """The newest parameters."""
        return self._training.server.params

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics rows of released rounds so far; another thread may add some."""
        return self._run.folder.rows

    @property
    def ledger(self) -> "PrivacyLedger | None":
        """The record of releases; None without privacy."""
        return self._run.ledger

    def evaluation(self) -> dict[str, Any] | None:
        """Tell what an evaluation says so far, see `evaluation_of`; None of a run that trains."""
        deployment = self._task.deployment
        algorithm = deployment.training.algorithm.make()
        if not isinstance(algorithm, Evaluate):
            return None
        return evaluation_of(self.rows, algorithm.largest_loss, deployment.rounds, self._reference)

    def participation(self) -> dict[str, Any]:
        """Put how often, and how close together, clients took part beside what is promised; not to be published."""
        realised = with_retries(self._state.realised_participation)
        return realised.beside(self._task.deployment.participation, self._task.deployment.rounds)

    def _agree_with_state(self, first: int) -> None:
        finished = self._state.finished_rounds()
        if finished < first:
            raise OtherStateError(
                f"{self._run.folder.directory}: the run has released {first} rounds, but its database knows of "
                f"{finished}: it is an older copy, which lacks the record of who took part; put back the one that "
                "belongs to the run"
            )
        last = self.ledger.last_release if self.ledger else None
        known, released = last.rounds if last else 0, self._state.last_release()
        if self.ledger and released > known:
            raise OtherStateError(
                f"{self._run.folder.directory}: its ledger ends with a model of {known} rounds, but its database knows "
                f"that one of {released} was released. The folder is an older copy, and noise would be used twice. Put "
                "back the newest one"
            )
        self._state.forget_rounds(first)
        self._record_release()

    def _record_release(self) -> None:
        last = self.ledger.last_release if self.ledger else None
        if last is not None:
            record = ReleaseRecord(last.rounds, last.digest, time.time())
            with_retries(lambda: self._state.record_release(record))

    def run(self, runner: CohortRunner, observe: Observer, stopping: Callable[[], bool]) -> bool:
        """Run rounds until the last, or until asked to stop; returns whether the run is over."""
        training = self._training

        def released(row: dict[str, Any]) -> None:
            self._record_release()
            observe(row)

        steps = training.rounds(runner, self._sampler, self._task.score, self._task.deployment.evaluate_every)
        try:
            with contextlib.closing(self._traced(steps)) as rounds:
                self._run.take(rounds, released, stopping)
        except DrainedError:
            # With privacy every round is saved already.
            if self.ledger is None and training.rounds_done:
                self._run.save(training.rounds_done, training.checkpoint())
        if self._decided and self.ledger is None and training.rounds_done < self._run.standing.end:
            self._run.save(training.rounds_done, training.checkpoint())
        over = self._run.divergence is not None or training.rounds_done >= self._run.standing.end or self._decided
        if over:
            self._finish()
        return over

    def _traced(self, steps: Iterator[Step]) -> Generator[Step, None, None]:
        """Make a span of each round, from its first attempt until it is recorded and saved."""
        name = self._state.run()
        for number in self._run.remaining:
            # What was told decides, with its noise.
            if self._decided:
                return
            with span("round", trace=round_trace(name, number), round=number):
                yield from itertools.islice(steps, 1)

    @property
    def _decided(self) -> bool:
        found = self.evaluation()
        return found is not None and found["verdict"] in (BETTER, WORSE)

    def _finish(self) -> None:
        """Write the summary: how it ended, by the same rules as a simulation, and the newest held-out scores."""
        run, model = self._run, self._task.model
        if not self._task.deployment.evaluates:
            run.divergence = run.divergence or find_worse_than_guess(run.folder.rows, model.vocabulary_size)
        precision = resolve_precision(self._task.deployment.training.precision, jax.default_backend())
        facts = describe_training(model, precision, run.folder.rows)
        found = self.evaluation()
        facts |= {} if found is None else {"evaluation": found}
        run.finish(self.params, facts | self._identity.about() | {"participation": self.participation()})


def planned_reservation(task: Task, directory: Path) -> "Reservation":
    """Work out what a private run reserves in the budget of its population, before there is anything in its folder.
    Raises UserError where it cannot be planned."""
    from fedlm.fl_core.privacy.private_plan import Beside, plan_aggregation

    capabilities = Capabilities.read(CAPABILITIES, _opening(task, directory))
    origins = capabilities.origins(Origins(vocabulary=task.vocabulary_origin))
    privacy, planned = planned_privacy(task)
    return _reservation(task, directory, origins, plan_aggregation(privacy, planned, Beside(origins)).plan)


def _reservation(task: Task, directory: Path, origins: Origins, plan: "PrivacyPlan") -> "Reservation":
    from fedlm.fl_core.runs.capabilities.data_budget import reservation_from
    from fedlm.fl_core.runs.private_releases import planned_training

    assert task.place is not None
    training = planned_training("serve", directory, plan, training_data=None)
    return reservation_from(task.place.budget, training, origins, task.place.run)


def _opening(task: Task, directory: Path) -> Opening:
    privacy = task.deployment.privacy
    return Opening(
        settings=task.deployment,
        private=privacy.is_private,
        secret=privacy.noise_seed == "entropy",
        # Nobody knows who the clients of a deployment are.
        vocabulary=task.fingerprint,
        folder=directory,
    )


def _reference(task: Task) -> Interval | None:
    algorithm = task.deployment.training.algorithm.make()
    if not isinstance(algorithm, Evaluate):
        return None
    return task.deployment.evaluation.reference(algorithm.largest_loss, task.fingerprint)


def _identity(task: Task, name: str, capabilities: Capabilities, reference: Interval | None) -> RunIdentity:
    compared = None if reference is None else " to ".join(map(repr, reference))
    return RunIdentity(
        kind="experiment",
        settings=settings_as_json(task.deployment),
        facts={
            "vocabulary": Fact(task.fingerprint, "vocabulary"),
            "evaluated_against": Fact(compared, "reference of its evaluation"),
            **capabilities.named_facts(),
        },
        paths=path_settings(Deployment),
        may_change=(*task.deployment.may_change, *idle_names(task.deployment)),
        unchecked={"run": name},
        origins=capabilities.origins(Origins(vocabulary=task.vocabulary_origin)),
    )


def _privacy(
    task: Task, folder: RunFolder, identity: RunIdentity
) -> "tuple[PrivateAggregation | None, PrivacyTerms | None]":
    deployment = task.deployment
    if not deployment.privacy.is_private:
        return None, None
    from fedlm.fl_core.privacy.private_plan import Beside, plan_aggregation
    from fedlm.fl_core.runs.private_releases import PrivacyTerms, begun_run

    privacy, planned = planned_privacy(task)
    begun = begun_run(folder)
    beside = Beside(identity.origins if begun is None else begun.origins)
    aggregation = plan_aggregation(privacy, planned, beside, begun and begun.plan)
    if privacy.is_distributed:
        check_sizes(aggregation.plan, planned)
    seed = deployment.seed if privacy.noise_seed == "experiment" else None
    reservation = None
    if task.place is not None:
        reservation = _reservation(task, folder.directory, identity.origins, aggregation.plan)
    return aggregation, PrivacyTerms(aggregation.plan, planned.delta, seed, repeatable=False, reservation=reservation)


def _training(
    task: Task, run: Run, capabilities: Capabilities, aggregation: "PrivateAggregation | None"
) -> FederatedTraining:
    deployment, optimization = task.deployment, task.deployment.optimization()
    params = capabilities.first(task.model.init(device_key(deployment.seed, "init")))
    averaging = capabilities.averaging(deployment.training.averaging())
    if aggregation is None and averaging == WeightedMean():
        warn("updates_not_bounded", why="update_norm_bound is none: one client can ruin the model")
    return FederatedTraining(
        run,
        optimization,
        optimization.first_state(params),
        aggregation,
        averaging=averaging,
        # Where nothing scores the model there is nothing to go back for, and no first state to keep.
        goes_back=task.score is not None and not deployment.evaluates,
        in_place=True,
    )
