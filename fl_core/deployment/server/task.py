"""What a deployment trains."""

from dataclasses import dataclass

from cryptography import x509

from fedlm.fl_core.deployment.plans.plan import Plan, PlanSource, make_plan
from fedlm.fl_core.deployment.security.plan_keys import PlanSigner
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.privacy.origins.vocabulary_origin import GIVEN, VocabularyOrigin
from fedlm.fl_core.rounds.cohorts import CohortSampler
from fedlm.fl_core.runs.federated_training import Score
from fedlm.models.base import Model


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

    def plan(self) -> Plan:
        """Make the plan of clients that have no models; see `make_plan` for its errors."""
        deployment = self.deployment
        size = self.model.vocabulary_size
        source = PlanSource(deployment.model, self.vocabulary, size, deployment.training, deployment.examples)
        return make_plan(source)
