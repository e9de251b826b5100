"""The settings of a deployment. The command line's options and help are made from this dataclass."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Annotated

from fedlm.fedlm_client.link.protocol import LONGEST_POPULATION
from fedlm.fedlm_client.text.text_examples import ExampleCut
from fedlm.fl_core.composed_settings import check_parts, check_value_types
from fedlm.fl_core.deployment.server.reports.robust_sums import RobustName, RobustRule
from fedlm.fl_core.deployment.server.round_rules import RoundRules
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import AtLeastOne, Count, NotNegative, Positive, Range, Seed
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.settings import PrivacySettings
from fedlm.fl_core.rounds.aggregation import AggregationRules
from fedlm.fl_core.rounds.round_loop import FederatedOptimization
from fedlm.fl_core.rounds.server_optimizers import DEFAULT_SERVER_RATE
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.runs.capabilities.warm_start_settings import WarmStartSettings
from fedlm.fl_core.runs.evaluation import EvaluationSettings
from fedlm.fl_core.updates.float32 import FLOAT32
from fedlm.fl_core.updates.update_bytes import DownloadEncoding


def check_population(name: str) -> None:
    """Refuse what is no name of a population. Raises ConfigurationError."""
    if not (name.isprintable() and 1 <= len(name) <= LONGEST_POPULATION):
        raise ConfigurationError(
            f"{setting('population')} is {name!r}, but must have 1 to {LONGEST_POPULATION} characters that can be "
            "printed"
        )


@dataclass(frozen=True, kw_only=True)
class _Model:
    """One model trained by clients that dial in."""

    model: str
    """Name of the model; `fedlm models` lists them."""
    rounds: Count = 100
    """Rounds to run."""
    client_learning_rate: Positive = 0.5
    """Learning rate of the clients' SGD."""
    server_learning_rate: Positive = DEFAULT_SERVER_RATE
    """Learning rate of the server optimizer."""
    examples: ExampleCut = "sentences"
    """What makes an example of a client's text: each sentence of a text, or each text as a whole. Devices cut their
    text so; `fedlm data import` cuts users' text into sentences too where its --examples is not given."""
    seed: Seed = 0
    """Root seed of initialisation, and of the clients' shuffling and rounding. Who is selected does not follow from
    it."""


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """Who takes part in a round, and how long it waits for them."""

    cohort_size: Count = 100
    """Reports that a round aims for. A private run's sums are divided by this number."""
    minimum_reports: Count | None = None
    """Least number of reports: with fewer when its time is over, a round is abandoned. If not given, four fifths of
    cohort-size."""
    over_selection: AtLeastOne = 1.3
    """Clients selected for each report that a round aims for, since some will not answer. All that answer in time
    count, be they more or fewer. If a round ended sooner, clients that answer at once would count more often than
    others."""
    window_seconds: NotNegative | None = None
    """Seconds in which clients check in for a round, from the first one on. The round then draws those that take part,
    uniformly among all that did; 0 takes whoever comes first. If not given, one and a half times check-in-seconds, so
    that all that stand by come in time."""
    selection_seconds: Positive = 60.0
    """Seconds for which a round still takes clients that come after the draw, if that found too few."""
    reporting_seconds: Positive = 600.0
    """Seconds that a round waits for reports of all the clients that it has selected. It waits this long whenever one
    of them is silent: give what nearly all devices need."""
    drain_seconds: Positive = 60.0
    """Seconds that the current round may go on once the server was asked to end (SIGTERM). It then counts if
    minimum-reports have come, and is abandoned otherwise. Service managers must wait somewhat longer."""
    min_separation: Count = 1
    """Least difference between the numbers of two rounds of a client; 1 allows adjacent rounds."""
    max_participations: Count | None = None
    """Most rounds in which a client takes part."""
    population: str = "default"
    """Name of the people whose devices take part. With privacy a device counts its rounds for each population, and
    refuses more than the first plan that it was shown allows."""
    aggregation: RobustName = "mean"
    """How the updates of a round become one. mean: the server adds each update and forgets it; update-clip-norm bounds
    what one client can do. median, trimmed_mean: each parameter stays within the range of the honest clients (Yin et
    al. 2018), if fewer than half are dishonest (median), or no more than are left out at each end (trimmed_mean). Both
    count all clients the same. They keep every update until the round ends, in a file in the run's
    folder, with 4 bytes for each parameter and room for twice the selected clients. They also need 8 bytes of memory
    for each parameter. Neither works with privacy, because its noise is made for sums. secure: clients mask their
    updates, and the server learns the sum alone (docs/security.md says of which server that holds). It needs keys,
    update-clip-norm and upload-bits 32. Its privacy is none, skellam or discrete_gaussian."""
    trimmed_part: Annotated[float, Range(above=0, below=0.5), OnlyWith("aggregation", "trimmed_mean")] = 0.1
    """Share of the updates that trimmed_mean leaves out at each end."""


@dataclass(frozen=True, kw_only=True)
class _Travel:
    """How clients and server talk."""

    check_in_seconds: Positive = 10.0
    """Seconds after which a client that is not needed now asks again, at the earliest."""
    download_encoding: DownloadEncoding = "float32"
    """How the model travels to clients: float32, or bfloat16 for half the bytes and rounded parameters."""
    chunk_bytes: Annotated[int, Range(least=1 << 12, most=1 << 22)] = 1 << 19
    """Bytes of a chunk of a download."""


@dataclass(frozen=True, kw_only=True)
class Deployment(_Travel, _Selection, _Model):
    """One model trained by clients that dial in: when it is scored and saved."""

    evaluate_every: Count = 10
    """Rounds between two scores of the held-out clients, if there are any. They are also scored after the last
    round."""
    checkpoint_every: Count = 10
    """Rounds between two checkpoints. The last round has one, too. With privacy every round has one, since every model
    leaves the server. So it has with secure sums, since no round whose sum may have been seen runs again."""

    training: TrainingSettings = field(default_factory=TrainingSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    start: WarmStartSettings = field(default_factory=WarmStartSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        check_value_types(self)
        check_parts(self)
        if not 1 <= self.fewest_reports <= self.cohort_size:
            raise ConfigurationError(
                f"{setting('minimum_reports')} is {self.minimum_reports}, but must lie between 1 and "
                f"{setting('cohort_size')}, {self.cohort_size}"
            )
        _ = self.participation
        check_population(self.population)
        self._check_aggregation()
        training = self.training
        self.privacy.check_privacy(
            "min_separation", training.update_clip_norm, training.weighting, states_epsilon=False
        )
        training.algorithm.check_privacy(self.privacy.is_private)
        if self.evaluates:
            self._check_evaluation()
        if self.privacy.is_distributed:
            self._check_noise_of_clients()
        if self.privacy.is_private and self.privacy.delta is None:
            raise ConfigurationError(
                f"{setting('privacy')} needs delta in a deployment, since it is not known how many clients there will "
                "be; give one well below 1 / the number of clients"
            )

    def _check_aggregation(self) -> None:
        rule = self.robust_rule()
        if rule.name == "mean":
            return
        if rule.name == "secure":
            self._check_secure()
        if self.privacy.is_private and not (rule.name == "secure" and self.privacy.is_distributed):
            instead = "; give privacy skellam or discrete_gaussian" if rule.name == "secure" else "; leave one out"
            raise ConfigurationError(
                f"{setting('aggregation')} is {rule.name}, but {setting('privacy')} is {self.privacy.privacy}, whose "
                f"guarantee is for sums of updates that the server clips{instead}"
            )
        if self.training.weighting == "examples":
            raise ConfigurationError(
                f"{setting('weighting')} is examples, but with the aggregation {rule.name} all clients count the same, "
                "since nothing bounds what one says that it has; give weighting uniform, or leave it out"
            )

    def _check_evaluation(self) -> None:
        name, privacy = self.training.algorithm.client_algorithm, self.privacy
        evaluates = f"{setting('client_algorithm')} is {name}, which"
        if self.start.init_from is None:
            raise ConfigurationError(f"{evaluates} scores the model of another run; give {setting('init_from')}")
        if self.aggregation not in ("mean", "secure"):
            raise ConfigurationError(
                f"{evaluates} needs sums over devices; give {setting('aggregation')} mean or secure"
            )
        if privacy.is_private and not (MECHANISMS[privacy.privacy].independent_rounds or privacy.is_distributed):
            raise ConfigurationError(
                f"{evaluates} tells each round's sums, so their noise must be independent; give {setting('privacy')} "
                "gaussian, or skellam or discrete_gaussian with secure sums"
            )
        if (most := self.participation.most(self.rounds)) > 1:
            raise ConfigurationError(
                f"{evaluates} counts each device once, but one may take part in {most} of {self.rounds} rounds; give "
                f"{setting('max_participations')} 1"
            )
        if privacy.clip_quantile is not None:
            raise ConfigurationError(f"{evaluates} knows norms of what is sent; leave {setting('clip_quantile')} out")

    def _check_noise_of_clients(self) -> None:
        privacy = self.privacy
        if self.aggregation != "secure":
            raise ConfigurationError(
                f"{setting('privacy')} is {privacy.privacy}, noise of clients, of whom the server must see sums alone; "
                f"give {setting('aggregation')} secure"
            )
        if privacy.noise_seed != "entropy":
            raise ConfigurationError(
                f"{setting('noise_seed')} is {privacy.noise_seed}, but clients draw the noise of {privacy.privacy}; "
                "leave it out"
            )
        if getattr(privacy, "least_survivors", None) is not None:
            raise ConfigurationError(
                f"{setting('least_survivors')} does nothing in a deployment, whose rounds count from "
                f"{setting('minimum_reports')} on; give that"
            )

    def _check_secure(self) -> None:
        training = self.training
        if training.update_clip_norm is None:
            raise ConfigurationError(
                f"{setting('aggregation')} is secure, whose clients scale their updates down themselves; give "
                f"{setting('update_clip_norm')}"
            )
        if training.compressor() != FLOAT32["float32"]:
            raise ConfigurationError(
                f"{setting('aggregation')} is secure, whose integers are compressed by no other means; give "
                f"{setting('upload_bits')} 32"
            )
        if training.dropout and not self.privacy.is_private:
            raise ConfigurationError(
                f"{setting('aggregation')} is secure without noise, but no client computes with dropout for "
                f"an exact sum; leave out {setting('dropout')}, or give {setting('privacy')} skellam"
            )

    def robust_rule(self) -> RobustRule:
        """How updates become one."""
        return RobustRule(self.aggregation, self.trimmed_part)

    def aggregation_rules(self) -> AggregationRules:
        rules = self.training.aggregation_rules(self.privacy.is_private)
        return rules if self.aggregation == "mean" else dataclasses.replace(rules, weighting="uniform")

    @property
    def fewest_reports(self) -> int:
        """Least number of reports: with fewer when its time is over, a round is abandoned. If not given, four fifths of
        cohort-size."""
        return math.ceil(0.8 * self.cohort_size) if self.minimum_reports is None else self.minimum_reports

    def round_rules(self) -> RoundRules:
        """When a round is over, and when it counts."""
        return RoundRules(
            goal=self.cohort_size,
            minimum=self.fewest_reports,
            over_selection=self.over_selection,
            selection_seconds=self.selection_seconds,
            reporting_seconds=self.reporting_seconds,
            window_seconds=1.5 * self.check_in_seconds if self.window_seconds is None else self.window_seconds,
            drain_seconds=self.drain_seconds,
        )

    @property
    def participation(self) -> BoundedParticipation:
        """What the server enforces of every client."""
        return BoundedParticipation(self.max_participations, self.min_separation)

    @property
    def saved_every(self) -> int:
        """Rounds after which the server saves them: 1 with privacy, before a model is released, and of evaluations."""
        often = self.privacy.is_private or self.aggregation == "secure" or self.evaluates
        return 1 if often else self.checkpoint_every

    @property
    def evaluates(self) -> bool:
        """Whether devices score a model and train nothing."""
        return not self.training.algorithm.make().trains

    @property
    def may_change(self) -> tuple[str, ...]:
        """What a run may go on with other values of. How many looks an evaluation has is part of what it says."""
        return tuple(name for name in MAY_CHANGE if not (self.evaluates and name == "rounds"))

    def optimization(self) -> FederatedOptimization:
        """What the round loop needs."""
        return self.training.optimization(self.server_learning_rate, self.client_learning_rate, self.seed)


MAY_CHANGE = (
    "rounds",
    "update_norm_bound",
    "cohort_size",
    "minimum_reports",
    "over_selection",
    "window_seconds",
    "selection_seconds",
    "reporting_seconds",
    "drain_seconds",
    "check_in_seconds",
    "chunk_bytes",
    "evaluate_every",
    "checkpoint_every",
)
"""What a run may go on with other values of. Privacy has a plan of its own, which may not change."""
