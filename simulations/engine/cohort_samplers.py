"""The registry of cohort samplers: from the settings of a run and its training clients to its sampler."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedlm.fl_core.cohorts import AvailabilitySampler, CohortSampler, UniformSampler, WeightedSampler
from fedlm.fl_core.privacy.participation import BoundedParticipation, Participation
from fedlm.fl_core.privacy.private_cohorts import MinSeparationSampler, PoissonSampler, ShuffledEpochSampler
from fedlm.simulations.data.cohort_files import CohortFile, read_availability, read_weights
from fedlm.simulations.data.federated_data import StoredData
from fedlm.simulations.experiments.configuration import Experiment


class Cohorts(NamedTuple):
    """How the cohorts of a run are drawn.

    Attributes:
      sampler: names them.
      file: the trace or the weights that it goes by, where it goes by a file.
      participation: what it enforces, where privacy can be accounted for it.
    """

    sampler: CohortSampler
    file: CohortFile | None
    participation: Participation | None = None


def make_cohorts(experiment: Experiment, train: StoredData) -> Cohorts:
    """Make the sampler of a run.

    Args:
      experiment: its settings.
      train: the training clients.

    Returns:
      The sampler, ready for every round of the run.

    Raises:
      UserError: a file is missing or damaged, or settings and clients do not fit.
    """
    return SAMPLERS[experiment.cohort_sampler](experiment, train)


def _uniform(experiment: Experiment, train: StoredData) -> Cohorts:
    return Cohorts(UniformSampler(len(train.num_examples), experiment.cohort_size, experiment.seed), None)


def _weighted(experiment: Experiment, train: StoredData) -> Cohorts:
    file = None
    with np.errstate(divide="ignore"):
        if experiment.cohort_weights is not None:
            weights, file = read_weights(experiment.cohort_weights, _indices(train))
            log_weights = np.log(weights)
        else:
            # A client without examples has nothing to train on, whatever the exponent makes of 0.
            logs = experiment.cohort_weight_exponent * np.log(np.maximum(train.num_examples, 1))
            log_weights = np.where(train.num_examples > 0, logs, -np.inf)
    return Cohorts(WeightedSampler(log_weights, experiment.cohort_size, experiment.seed), file)


def _availability(experiment: Experiment, train: StoredData) -> Cohorts:
    assert experiment.availability_trace is not None
    hours = experiment.availability_cycle_hours
    availability, file = read_availability(experiment.availability_trace, _indices(train), hours)
    sampler = AvailabilitySampler(availability, experiment.round_minutes, experiment.cohort_size, experiment.seed)
    sampler.check_rounds(experiment.rounds)
    return Cohorts(sampler, file)


def _poisson(experiment: Experiment, train: StoredData) -> Cohorts:
    sampler = PoissonSampler(len(train.num_examples), experiment.cohort_size, experiment.seed)
    return Cohorts(sampler, None, sampler.participation)


def _min_separation(experiment: Experiment, train: StoredData) -> Cohorts:
    bound = BoundedParticipation(experiment.max_participations, experiment.min_separation)
    sampler = MinSeparationSampler(len(train.num_examples), experiment.cohort_size, experiment.seed, bound)
    sampler.check_rounds(experiment.rounds)
    return Cohorts(sampler, None, bound)


def _shuffled_epochs(experiment: Experiment, train: StoredData) -> Cohorts:
    sampler = ShuffledEpochSampler(len(train.num_examples), experiment.cohort_size, experiment.seed)
    return Cohorts(sampler, None, sampler.participation)


def _indices(train: StoredData) -> dict[str, int]:
    return {name: index for index, name in enumerate(train.client_ids)}


SAMPLERS: dict[str, Callable[[Experiment, StoredData], Cohorts]] = {
    "uniform": _uniform,
    "availability": _availability,
    "weighted": _weighted,
    "poisson": _poisson,
    "min_separation": _min_separation,
    "shuffled_epochs": _shuffled_epochs,
}
"""One entry for each value of the setting `cohort_sampler`."""
