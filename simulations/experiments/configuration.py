"""The settings of simulated training. The command line's options and help are made from these dataclasses."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlm.fl_core.composed_settings import (
    PartSettings,
    check_parts,
    check_value_types,
    compose_without_idle,
    path_settings,
    states_epsilon,
)
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, CountOrZero, Positive, PositiveOrInfinite, Seed
from fedlm.fl_core.privacy.settings import PrivacyName
from fedlm.fl_core.rounds.server_optimizers import DEFAULT_SERVER_RATE
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.runs.capabilities.settings import OfSimulations
from fedlm.simulations.engine.cohort_settings import CohortSettings
from fedlm.simulations.evaluation.canaries import AuditSettings
from fedlm.simulations.experiments.simulated_privacy import SimulatedPrivacySettings
from fedlm.simulations.experiments.tuning import SelectionSettings


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """When a run is scored, and on what."""

    evaluate_every: Count = 10
    """Rounds between two scores of the held-out clients, who are also scored after the last round."""
    heldout_examples: Count = 10_000
    """Held-out examples to score on; always the same ones."""
    test_examples: Count | None = None
    """Test examples to score on at the end. If not given, all."""

    def __post_init__(self) -> None:
        check_value_types(self)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The data, rounds and checkpoints of a run."""

    data: Path
    """Folder that `fedlm data import` wrote."""
    rounds: Count = 100
    """Rounds to run."""
    checkpoint_every: Count = 50
    """Rounds between two checkpoints. The last round has one, too."""
    lanes_per_device: Count | None = None
    """Clients trained together on one device. If not given, 1 on a CPU, else as many as fit well."""
    cohorts: CohortSettings = field(default_factory=CohortSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    privacy: SimulatedPrivacySettings = field(default_factory=SimulatedPrivacySettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)


@dataclass(frozen=True, kw_only=True)
class RunSettings(OfSimulations, _Run):
    """What all runs of one experiment, or of one comparison, have in common."""

    def __post_init__(self) -> None:
        check_value_types(self)
        check_parts(self)
        for privacy in self.compared_privacy():
            privacy.check_privacy(
                self.cohorts.cohort_sampler,
                self.training.update_clip_norm,
                self.training.weighting,
                states_epsilon(self),
            )
            privacy.check_masks(self.cohorts.cohort_size)
            privacy.check_noise_cohort(self.cohorts.cohort_size)
            self.training.algorithm.check_privacy(privacy.is_private)
            if privacy.is_distributed:
                self._check_integers(privacy.privacy)

    def _check_integers(self, mechanism: str) -> None:
        """Refuse, by a ConfigurationError, what compresses updates where integers travel."""
        defaults = TrainingSettings()
        for name in ("upload_bits", "compression", "upload_rotation"):
            found = getattr(self.training, name)
            if found != getattr(defaults, name):
                raise ConfigurationError(
                    f"{setting(name)} is {found}, which does nothing with {setting('privacy')} {mechanism}: updates "
                    f"travel as integers of {setting('lattice_bits')}; leave it out"
                )

    def compared_privacy(self) -> list[SimulatedPrivacySettings]:
        """List the privacy of all runs that these settings lead to."""
        return [self.privacy]

    @property
    def chooses(self) -> bool:
        """Whether a run is one of a random number, of which the best is kept."""
        return False


@dataclass(frozen=True, kw_only=True)
class Experiment(RunSettings):
    """One model trained once.

    Example:
      >>> from fedlm import compose
      >>> experiment = compose(Experiment, model="cifg_tiny", data=Path("runs/stdlib"), rounds=20, length=16)
      >>> experiment.rounds, experiment.training.length, experiment.privacy.is_private
      (20, 16, False)
    """

    model: str
    """Name of the model; `fedlm models` lists them."""
    client_learning_rate: Positive = 0.5
    """Learning rate of the clients' SGD."""
    server_learning_rate: Positive = DEFAULT_SERVER_RATE
    """Learning rate of the server optimizer."""
    seed: Seed = 0
    """Root seed of initialisation, cohorts, shuffling, dropout and rounding. Where privacy relies on Poisson cohorts,
    all but the first follow from a secret instead."""


@dataclass(frozen=True, kw_only=True)
class Comparison(RunSettings):
    """Several models, each trained with all combinations of rates, privacy and seeds.

    Example:
      >>> from fedlm import compose
      >>> rates = {"client_learning_rates": (0.1, 0.5), "seeds": (0, 1, 2)}
      >>> comparison = compose(Comparison, models=("cifg_tiny", "si_cifg_tiny"), data=Path("runs/stdlib"), **rates)
      >>> len(comparison.experiments())
      12
    """

    models: tuple[str, ...]
    """Names of the models to compare; `fedlm models` lists them."""
    client_learning_rates: tuple[Positive, ...] = (0.5,)
    """Clients' learning rates to try."""
    server_learning_rates: tuple[Positive, ...] = (0.01,)
    """Server learning rates to try."""
    seeds: tuple[Seed, ...] = (0, 1)
    """Root seeds; each trains every model with every combination of learning rates once."""
    mechanisms: tuple[PrivacyName, ...] = ()
    """Noise mechanisms to compare. If none is given, all runs use privacy. A setting of one mechanism, such as bands,
    goes to that mechanism's runs."""
    epsilons: tuple[PositiveOrInfinite, ...] = ()
    """Compare at each of these epsilons instead of target-epsilon. inf: without noise. Such runs have no privacy, but
    the same cohorts and clip norm, and equal weights for all clients, so they show what noise costs."""
    halvings: CountOrZero = 0
    """Select learning rates by successive halving: how many times to halve the client rates of each server rate before
    the end. With 2, the first seed trains all of them for a quarter of the rounds, the half with the lower held-out
    losses for half, and the best quarter to the end, each from its checkpoint. The other seeds train only the best
    pair. All server rates are trained to the end, since higher ones are ahead at first. 0: every seed trains every pair
    to the end."""
    benchmark: str | None = None
    """Published settings that these follow, by the name of their preset. The report puts the published scores beside
    those of the runs, and names all that is different."""
    selection: SelectionSettings = field(default_factory=SelectionSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        varied = {name: getattr(self, name) for name in ("mechanisms", "epsilons", "seeds")}
        given = {name: value for name, value in varied.items() if value != getattr(type(self), name)}
        self.selection.check_runs(self.privacy, given)
        self._check_halvings()
        for name in ("models", "client_learning_rates", "server_learning_rates", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ConfigurationError(
                    f"{setting(name)} is {values}, but must name at least one value, each only once"
                )

    def _check_halvings(self) -> None:
        if 2**self.halvings > self.rounds:
            raise ConfigurationError(
                f"{setting('halvings')} is {self.halvings}, but {self.rounds} rounds can be halved "
                f"{self.rounds.bit_length() - 1} times"
            )
        if self.halvings and any(privacy.is_private for privacy in self.compared_privacy()):
            raise ConfigurationError(
                f"{setting('halvings')} is {self.halvings}, but private runs cannot be trained on for more rounds than "
                "they were planned for; leave it out"
            )

    @property
    def chooses(self) -> bool:
        return self.selection.private_selection != "none"

    def candidates(self) -> list[Experiment]:
        """List what a run of a private selection may be, all with seed 0."""
        return dataclasses.replace(self, seeds=(0,), selection=SelectionSettings()).experiments()

    def compared_privacy(self) -> list[SimulatedPrivacySettings]:
        """List the privacy to compare: every mechanism at every epsilon, and at last none where that is asked for."""
        if not (self.mechanisms or self.epsilons):
            return [self.privacy]
        self.privacy.check_mechanisms(self.mechanisms, self.epsilons)
        mechanisms = self.mechanisms or (self.privacy.privacy,)
        levels: list[float | None] = [epsilon for epsilon in self.epsilons if math.isfinite(epsilon)]
        grid = [
            self.privacy.with_mechanism(mechanism, epsilon)
            for mechanism in mechanisms
            for epsilon in (levels if self.epsilons else [None])
        ]
        noiseless = SimulatedPrivacySettings(delta=self.privacy.delta if states_epsilon(self) else None)
        return grid + [noiseless] * (math.inf in self.epsilons)

    def _of_runs(self, model: str, privacy: SimulatedPrivacySettings) -> dict[str, Any]:
        """Collect what all runs of one model and privacy have in common."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(RunSettings)}
        if self.epsilons and not privacy.is_private and self.training.weighting == "auto":
            shared["training"] = dataclasses.replace(self.training, weighting="uniform")
        parts = {name: part for name, part in shared.items() if isinstance(part, PartSettings)}
        shared |= {name: part.of_run(model, privacy.is_private) for name, part in parts.items()}
        return shared | {"privacy": privacy, "model": model}

    def experiments(self) -> list[Experiment]:
        """List the experiments, those of one model together.

        Returns:
          One for each model, privacy, client learning rate, server learning rate and seed.
        """
        return [
            Experiment(
                **self._of_runs(model, privacy),
                client_learning_rate=client_rate,
                server_learning_rate=server_rate,
                seed=seed,
            )
            for model in self.models
            for privacy in self.compared_privacy()
            for client_rate in self.client_learning_rates
            for server_rate in self.server_learning_rates
            for seed in self.seeds
        ]


MAY_MOVE = path_settings(Experiment)
"""Paths whose files may lie elsewhere when a run goes on; their content is compared instead."""


def experiment_of(record: dict[str, Any]) -> Experiment:
    """Make settings of the flat record of an experiment, which may be one of before idle values were refused.

    Raises:
      ConfigurationError: the record has a setting that is not known, or one is out of range.
    """
    return compose_without_idle(Experiment, record, record)
