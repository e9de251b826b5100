"""The registry of cohort samplers: from settings and training clients to the sampler of a run."""

from collections.abc import Callable
from typing import NamedTuple

from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, Participation
from fedlm.fl_core.privacy.private_cohorts import MinSeparationSampler, PoissonSampler, ShuffledEpochSampler
from fedlm.fl_core.rounds.cohorts import CohortSampler, UniformSampler
from fedlm.simulations.data.federated_data import StoredData
from fedlm.simulations.engine.cohort_settings import CohortSettings


class Cohorts(NamedTuple):
    """How the cohorts of a run are drawn."""

    sampler: CohortSampler
    participation: Participation | None = None  # what it enforces, where privacy can be accounted for it


def make_cohorts(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    """Make the sampler of a run.

    Args:
      settings: how cohorts are drawn.
      train: the training clients.
      rounds: of the run, for all of which the sampler must have clients.
      seed: the root seed.

    Raises:
      ConfigurationError: settings and clients do not fit.
    """
    return SAMPLERS[settings.cohort_sampler](settings, train, rounds, seed)


def _uniform(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    return Cohorts(UniformSampler(len(train.num_examples), settings.cohort_size, seed))


def _poisson(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    sampler = PoissonSampler(len(train.num_examples), settings.cohort_size, seed)
    return Cohorts(sampler, sampler.participation)


def _min_separation(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    bound = BoundedParticipation(settings.max_participations, settings.min_separation)
    sampler = MinSeparationSampler(len(train.num_examples), settings.cohort_size, seed, bound)
    sampler.check_rounds(rounds)
    return Cohorts(sampler, bound)


def _shuffled_epochs(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    sampler = ShuffledEpochSampler(len(train.num_examples), settings.cohort_size, seed)
    return Cohorts(sampler, sampler.participation)


SAMPLERS: dict[str, Callable[[CohortSettings, StoredData, int, int], Cohorts]] = {
    "uniform": _uniform,
    "poisson": _poisson,
    "min_separation": _min_separation,
    "shuffled_epochs": _shuffled_epochs,
}
"""One entry for each value of the setting `cohort_sampler`."""
