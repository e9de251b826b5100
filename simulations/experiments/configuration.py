"""The settings of simulated training. The command line's options and help are made from these dataclasses."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.settings import PrivacyName, PrivacySettings
from fedlm.fl_core.settings import TrainingSettings, check_learning_rates, check_seeds

_GONE = {"client_gradient_norms"}
CohortSamplerName = Literal["uniform", "availability", "weighted", "poisson", "min_separation", "shuffled_epochs"]


@dataclass(frozen=True, kw_only=True)
class RoundSettings(TrainingSettings):
    """What one simulation and a whole comparison have in common."""

    data: Path
    """Folder of the federated data set, as `fedlm data import` writes it."""
    rounds: int = 100
    """Rounds to run."""
    cohort_size: int = 50
    """Clients that take part in a round, drawn without replacement."""
    cohort_sampler: CohortSamplerName = "uniform"
    """How a round's clients are drawn. uniform: all alike. weighted: one after another with probability proportional to
    weight among those that are left. availability: uniformly among those that are available when the round begins, or
    all of them where they are fewer than cohort-size. Those that privacy can be accounted for: poisson: each client
    independently, cohort-size of them on average. min_separation: uniformly among those that may take part again.
    shuffled_epochs: all clients in a random order, then in another."""
    min_separation: int = 1
    """Of the min_separation sampler: rounds from one that a client takes part in to the next that it may, at least; 1
    allows adjacent rounds."""
    max_participations: int | None = None
    """Of the min_separation sampler: rounds that a client may take part in at most."""
    availability_trace: Path | None = None
    """CSV file for the availability sampler, with the header `client_id,start,end`: hours within a cycle from and until
    which a client is available, past the cycle's end where start is above end. Clients without a row never are."""
    availability_cycle_hours: float = 24.0
    """Length of the cycle that the trace's hours are of; it repeats for ever."""
    round_minutes: float = 10.0
    """How long a round lasts for the availability sampler: round r begins r times this after the cycle's beginning."""
    cohort_weights: Path | None = None
    """CSV file for the weighted sampler, with the header `client_id,weight`; clients without a row weigh nothing. Where
    it is not given, a client weighs its number of examples to the power cohort-weight-exponent."""
    cohort_weight_exponent: float = 1.0
    """Power of a client's number of examples that is its weight for the weighted sampler."""
    init_from: Path | None = None
    """Folder of a run of ours, whose last parameters to begin with in place of random ones; it must be of the same
    model and vocabulary."""

    evaluate_every: int = 10
    """Score the held-out clients every so many rounds, and after the last."""
    heldout_examples: int = 10_000
    """Held-out examples to score on; always the same ones."""
    test_examples: int | None = None
    """Test examples to score on at the end; all where it is not given."""
    checkpoint_every: int = 50
    """Save a checkpoint every so many rounds, and after the last."""

    audit_canaries: int = 0
    """Audit the run: draw so many made-up clients, let half of them take part, and state in the summary how well one
    can tell from the model which, as a lower bound on epsilon at delta. It is 0 wherever N times delta is not far below
    0.05."""
    audit_repeats: int = 20
    """Examples of a canary client, all the same random sequence."""

    lanes_per_device: int | None = None
    """Clients trained together on one device: 1 on a CPU where it is not given, else as many as fit well."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}, but must be at least 1")
        super().__post_init__()
        if self.audit_canaries < 0 or self.audit_canaries == 1 or self.audit_repeats < 1:
            raise ConfigurationError(
                f"audit_canaries is {self.audit_canaries} and audit_repeats {self.audit_repeats}, but they must be at "
                "least 2 (or 0 for no audit) and 1"
            )
        _check_cohort_sampler(self)
        self.check_privacy(self.cohort_sampler, self.update_clip_norm, self.weighting, self.audit_canaries > 0)


@dataclass(frozen=True, kw_only=True)
class Experiment(RoundSettings):
    """One model trained once."""

    model: str
    """Name of the model; `fedlm models` lists them."""
    client_learning_rate: float = 0.5
    """Learning rate of the clients' SGD."""
    server_learning_rate: float = 0.01
    """Learning rate of the server optimizer."""
    seed: int = 0
    """Root seed of initialisation, cohorts, shuffling and rounding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_rates("client_learning_rate", self.client_learning_rate)
        check_learning_rates("server_learning_rate", self.server_learning_rate)
        check_seeds("seed", self.seed)


@dataclass(frozen=True, kw_only=True)
class Comparison(RoundSettings):
    """Several models, each trained with every combination of learning rates, privacy and seeds."""

    models: tuple[str, ...]
    """Names of the models to compare; `fedlm models` lists them."""
    client_learning_rates: tuple[float, ...] = (0.5,)
    """Learning rates of the clients' SGD to try."""
    server_learning_rates: tuple[float, ...] = (0.01,)
    """Learning rates of the server optimizer to try."""
    seeds: tuple[int, ...] = (0, 1)
    """Root seeds; each trains every model with every combination of learning rates once."""
    mechanisms: tuple[PrivacyName, ...] = ()
    """Noise mechanisms to compare; all runs use privacy where none is given. A setting of one mechanism alone, such as
    bands, goes to the runs of that one."""
    epsilons: tuple[float, ...] = ()
    """Compare at each of these epsilons in place of target-epsilon. inf means without noise: such runs have no privacy,
    but the same cohorts and clip norm, and all clients weigh the same, so that what noise costs can be seen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("models", "client_learning_rates", "server_learning_rates", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ConfigurationError(f"{name} is {values}, but must name at least one value, each only once")
        check_learning_rates("client_learning_rates", *self.client_learning_rates)
        check_learning_rates("server_learning_rates", *self.server_learning_rates)
        check_seeds("seeds", *self.seeds)

    def check_privacy(self, sampler: str, clip_norm: float | None, weighting: str, audited: bool) -> None:
        """Refuse settings that break a guarantee, or do nothing; see `PrivacySettings.check_privacy`."""
        if not (self.mechanisms or self.epsilons):
            super().check_privacy(sampler, clip_norm, weighting, audited)
            return
        self.check_mechanisms(self.mechanisms, self.epsilons)
        for privacy in self._privacy_settings():
            privacy.check_privacy(sampler, clip_norm, weighting, audited)

    def _privacy_settings(self) -> list[PrivacySettings]:
        """List the privacy to compare: every mechanism at every epsilon, and at last none where that is asked for."""
        if not (self.mechanisms or self.epsilons):
            return [self]
        mechanisms = self.mechanisms or (self.privacy,)
        levels: list[float | None] = [epsilon for epsilon in self.epsilons if math.isfinite(epsilon)]
        grid = [
            self.with_mechanism(mechanism, epsilon)
            for mechanism in mechanisms
            for epsilon in (levels if self.epsilons else [None])
        ]
        return grid + [PrivacySettings()] * (math.inf in self.epsilons)

    def _of_runs(self, privacy: PrivacySettings) -> dict[str, Any]:
        """Collect what all runs of one privacy have in common."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(RoundSettings)}
        shared |= {field.name: getattr(privacy, field.name) for field in dataclasses.fields(PrivacySettings)}
        if self.epsilons and privacy.privacy == "none" and self.weighting == "auto":
            shared["weighting"] = "uniform"
        return shared

    def experiments(self) -> list[Experiment]:
        """List the experiments, those of one model together.

        Returns:
          One for each model, privacy, client learning rate, server learning rate and seed.
        """
        return [
            Experiment(
                **self._of_runs(privacy),
                model=model,
                client_learning_rate=client_rate,
                server_learning_rate=server_rate,
                seed=seed,
            )
            for model in self.models
            for privacy in self._privacy_settings()
            for client_rate in self.client_learning_rates
            for server_rate in self.server_learning_rates
            for seed in self.seeds
        ]


MAY_MOVE = ("data", "availability_trace", "cohort_weights", "init_from")
"""Paths whose files may lie elsewhere when a run goes on; their content is compared instead."""

_OF_SAMPLER = {
    "availability": ("availability_trace", "availability_cycle_hours", "round_minutes"),
    "weighted": ("cohort_weights", "cohort_weight_exponent"),
    "min_separation": ("min_separation", "max_participations"),
}
_POSITIVE = (
    "rounds",
    "cohort_size",
    "evaluate_every",
    "heldout_examples",
    "test_examples",
    "checkpoint_every",
    "lanes_per_device",
)


def _check_cohort_sampler(settings: RoundSettings) -> None:
    """Refuse settings of cohort samplers that are missing, out of range or without effect."""
    chosen = settings.cohort_sampler
    if chosen not in get_args(CohortSamplerName):
        raise ConfigurationError(f"cohort_sampler is {chosen!r}, but must be one of {get_args(CohortSamplerName)}")
    defaults = {field.name: field.default for field in dataclasses.fields(RoundSettings)}
    for sampler, names in _OF_SAMPLER.items():
        for name in names:
            value = getattr(settings, name)
            if value != defaults[name] and chosen != sampler:
                raise ConfigurationError(
                    f"{name} is {value}, which does nothing with the cohort_sampler {chosen}; give cohort_sampler "
                    f"{sampler}, or leave {name} out"
                )
    if chosen == "availability" and settings.availability_trace is None:
        raise ConfigurationError("cohort_sampler is availability, but there is no availability_trace; give one")
    for name in ("availability_cycle_hours", "round_minutes"):
        value = getattr(settings, name)
        if not (value > 0 and math.isfinite(value)):
            raise ConfigurationError(f"{name} is {value}, but must be positive and finite")
    if not math.isfinite(settings.cohort_weight_exponent):
        raise ConfigurationError(f"cohort_weight_exponent is {settings.cohort_weight_exponent}, but must be finite")
    if settings.cohort_weights is not None and settings.cohort_weight_exponent != 1.0:
        raise ConfigurationError(
            f"cohort_weight_exponent is {settings.cohort_weight_exponent}, which does nothing with cohort_weights: it "
            "is a power of numbers of examples; leave one of the two out"
        )


def as_json(settings: RoundSettings) -> dict[str, Any]:
    """Make a JSON-able dictionary of settings.

    Args:
      settings: any of this module.

    Returns:
      From names to values; paths as strings, tuples as lists, in which infinity is `inf`.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [str(entry) if entry == math.inf else entry for entry in value]
        return str(value) if isinstance(value, Path) else value

    return {name: plain(value) for name, value in dataclasses.asdict(settings).items()}


def with_defaults(record: dict[str, Any]) -> dict[str, Any]:
    """Complete a record of settings that an earlier version wrote: it did not know all of today's, and some are gone.

    Args:
      record: as `as_json` made it then.

    Returns:
      The record with today's default for every setting that it lacks.
    """
    known = (field for field in dataclasses.fields(Experiment) if field.default is not dataclasses.MISSING)
    if "privacy" not in record and record.get("weighting") == "examples":
        # What was the default then is what `auto` means without privacy.
        record = record | {"weighting": "auto"}
    kept = {name: value for name, value in record.items() if name not in _GONE}
    return {field.name: field.default for field in known} | kept


def experiment_of(record: dict[str, Any]) -> Experiment:
    """Make settings of their JSON-able dictionary, also one that an earlier version wrote.

    Args:
      record: as `as_json` made it of an experiment.

    Returns:
      The experiment.

    Raises:
      TypeError: the record has a setting that is not known.
      ConfigurationError: a setting is out of range.
    """
    paths = {name: Path(record[name]) for name in MAY_MOVE if record.get(name) is not None}
    return Experiment(**with_defaults(record) | paths)
