"""The registry of cohort samplers: from settings and training clients to the sampler of a run."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, Participation
from fedlm.fl_core.privacy.private_cohorts import MinSeparationSampler, PoissonSampler, ShuffledEpochSampler
from fedlm.fl_core.rounds.cohorts import AvailabilitySampler, CohortSampler, UniformSampler, WeightedSampler
from fedlm.simulations.data.cohort_files import CohortFile, read_availability, read_weights
from fedlm.simulations.data.federated_data import StoredData
from fedlm.simulations.engine.cohort_settings import CohortSettings


class Cohorts(NamedTuple):
    """How the cohorts of a run are drawn."""

    sampler: CohortSampler
    file: CohortFile | None  # the trace or the weights that it goes by, where it goes by a file
    participation: Participation | None = None  # what it enforces, where privacy can be accounted for it


def make_cohorts(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    """Make the sampler of a run.

    Args:
      settings: how cohorts are drawn.
      train: the training clients.
      rounds: of the run, for all of which the sampler must have clients.
      seed: the root seed.

    Raises:
      UserError: a file is missing or damaged, or settings and clients do not fit.
    """
    return SAMPLERS[settings.cohort_sampler](settings, train, rounds, seed)


def _uniform(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    return Cohorts(UniformSampler(len(train.num_examples), settings.cohort_size, seed), None)


def _weighted(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    file = None
    with np.errstate(divide="ignore"):
        if settings.cohort_weights is not None:
            weights, file = read_weights(settings.cohort_weights, _indices(train))
            log_weights = np.log(weights)
        else:
            # A client without examples has nothing to train on, whatever the exponent makes of 0.
            logs = settings.cohort_weight_exponent * np.log(np.maximum(train.num_examples, 1))
            log_weights = np.where(train.num_examples > 0, logs, -np.inf)
    return Cohorts(WeightedSampler(log_weights, settings.cohort_size, seed), file)


def _availability(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    assert settings.availability_trace is not None
    hours = settings.availability_cycle_hours
    availability, file = read_availability(settings.availability_trace, _indices(train), hours)
    sampler = AvailabilitySampler(availability, settings.round_minutes, settings.cohort_size, seed)
    sampler.check_rounds(rounds)
    return Cohorts(sampler, file)


def _poisson(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    sampler = PoissonSampler(len(train.num_examples), settings.cohort_size, seed)
    return Cohorts(sampler, None, sampler.participation)


def _min_separation(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    bound = BoundedParticipation(settings.max_participations, settings.min_separation)
    sampler = MinSeparationSampler(len(train.num_examples), settings.cohort_size, seed, bound)
    sampler.check_rounds(rounds)
    return Cohorts(sampler, None, bound)


def _shuffled_epochs(settings: CohortSettings, train: StoredData, rounds: int, seed: int) -> Cohorts:
    sampler = ShuffledEpochSampler(len(train.num_examples), settings.cohort_size, seed)
    return Cohorts(sampler, None, sampler.participation)


def _indices(train: StoredData) -> dict[str, int]:
    return {name: index for index, name in enumerate(train.client_ids)}


SAMPLERS: dict[str, Callable[[CohortSettings, StoredData, int, int], Cohorts]] = {
    "uniform": _uniform,
    "availability": _availability,
    "weighted": _weighted,
    "poisson": _poisson,
    "min_separation": _min_separation,
    "shuffled_epochs": _shuffled_epochs,
}
"""One entry for each value of the setting `cohort_sampler`."""
