"""What a deployment trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509

from fedlm.fl_core.deployment.plans.plan import Plan, PlanSource, make_plan
from fedlm.fl_core.deployment.security.plan_keys import PlanSigner
from fedlm.fl_core.deployment.server.client_registry import OtherRuns
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.privacy.origins.vocabulary_origin import GIVEN, VocabularyOrigin
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.rounds.cohorts import CohortSampler
from fedlm.fl_core.runs.federated_training import Score
from fedlm.models.base import Model

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.runs.capabilities.data_budget import DataBudget


@dataclass(frozen=True)
class PlaceInPopulation:
    """Where a private run stands among all runs of its population, and what these promise together."""

    run: str  # its name
    first_round: int  # number, in the population, of its round 0
    rounds: int  # of all runs at most
    promised: BoundedParticipation  # of a client in all of them
    budget: "DataBudget"
    taken: Mapping[str, int]  # in how many rounds of other runs a client took part, by its identity

    @property
    def other_runs(self) -> OtherRuns:
        """What bounds a client beside the run's own settings."""
        return OtherRuns(self.promised.most(self.rounds), self.taken)


@dataclass(frozen=True)
class Task:
    """What is trained."""

    deployment: Deployment
    model: Model
    vocabulary: bytes
    fingerprint: str
    score: Score | None = None  # see `fedlm.fl_core.runs.federated_training.Score`
    sampler: CohortSampler | None = None  # names the cohorts, for runs that repeat a simulation
    vocabulary_origin: VocabularyOrigin = GIVEN
    authorities: tuple[x509.Certificate, ...] = ()  # who signs certificates of clients; for secure sums
    plan_signer: PlanSigner | None = None  # signs the plans of clients that have no models; None for no plans
    place: PlaceInPopulation | None = None  # None of a run that is alone

    def plan(self) -> Plan:
        """Make the plan of clients that have no models; see `make_plan` for its errors."""
        deployment = self.deployment
        size = self.model.vocabulary_size
        source = PlanSource(deployment.model, self.vocabulary, size, deployment.training, deployment.examples)
        return make_plan(source)
