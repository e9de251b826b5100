"""A run of federated rounds on disk, opened to be used."""

from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.composed_settings import settings_as_json
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.simulations.evaluation.trained_models import TrainedModel, unknown_settings
from fedlm.simulations.experiments.configuration import Experiment, experiment_of


class TrainedRun(NamedTuple):
    """A run of federated rounds with at least one checkpoint: its settings and its model."""

    experiment: Experiment
    trained: TrainedModel


def federated_run(directory: Path, trained: TrainedModel) -> TrainedRun:
    """Say of an opened run in a folder that it is one of federated rounds; raises CheckpointError where it is not."""
    if trained.command != "simulate":
        raise CheckpointError(
            f"{directory}: a run of `fedlm {trained.command}`, which has no clients; give one of `fedlm simulate`"
        )
    try:
        experiment = experiment_of(trained.settings)
    except ConfigurationError as error:
        raise unknown_settings(directory, error) from error
    return TrainedRun(experiment, trained._replace(settings=settings_as_json(experiment)))
