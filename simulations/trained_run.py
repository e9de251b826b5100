"""A run on disk, opened to be used: its settings, its data and the parameters of its last checkpoint."""

from pathlib import Path
from typing import NamedTuple

import jax

from fl_core.checkpoints import Checkpoints
from fl_core.errors import CheckpointError, ConfigurationError, DataError
from fl_core.server_optimizers import init_server
from fl_core.training_runs.run_lock import run_lock
from models.base import Model, Params
from models.precision import Precision, resolve_precision, with_precision
from models.registry import create_model
from simulations.configuration import Experiment, experiment_of
from simulations.datasets.store import TokenStore
from simulations.federated_data import StoredData


class TrainedRun(NamedTuple):
    """A run with at least one checkpoint.

    Attributes:
      experiment: its settings.
      model: with the data's vocabulary, in the policy's precision.
      precision: the resolved policy.
      params: of the newest checkpoint.
      rounds: how many rounds that checkpoint has seen.
      store: the data.
    """

    experiment: Experiment
    model: Model
    precision: Precision
    params: Params
    rounds: int
    store: TokenStore

    def split(self, name: str) -> StoredData:
        """Open a split of the data, cut to the run's sequence length.

        Args:
          name: train, heldout or test.

        Returns:
          Its clients.
        """
        return StoredData(self.store.split(name), self.experiment.length)


def open_run(directory: Path, data: Path | None = None) -> TrainedRun:
    """Open a run.

    Args:
      directory: its folder.
      data: where its data set lies now; where it was when the run was begun, if it is not given.

    Returns:
      The run.

    Raises:
      CheckpointError: the folder has no checkpoint, or one that cannot be read.
      DataError: the data set is missing, or another than that of the run.
      ConfigurationError: a process is writing into the folder.
    """
    if not (directory / "checkpoints").is_dir():
        raise _no_checkpoint(directory)
    with run_lock(directory), Checkpoints(directory / "checkpoints") as checkpoints:
        rounds = checkpoints.latest_round()
        if not rounds:
            raise _no_checkpoint(directory)
        about = checkpoints.restore_about(rounds)
        experiment = _settings(directory, about)
        store = TokenStore.open(data or experiment.data)
        if store.fingerprint != about["vocabulary"]:
            raise DataError(
                f"{store.path}: has another vocabulary than the run in {directory} was trained with; give the data set "
                "of the run"
            )
        precision = resolve_precision(experiment.precision, jax.default_backend())
        model = with_precision(create_model(experiment.model, store.vocabulary_size), precision)
        like = jax.eval_shape(lambda key: init_server(experiment.server_config(), model.init(key)), jax.random.key(0))
        params = checkpoints.restore_state(rounds, like).params
    return TrainedRun(experiment, model, precision, params, rounds, store)


def _settings(directory: Path, about: dict) -> Experiment:
    try:
        return experiment_of(about["experiment"])
    except (KeyError, TypeError, ConfigurationError) as error:
        raise CheckpointError(
            f"{directory}: the settings in its checkpoint are not those of a run of this version ({error}); open it "
            "with the version that wrote it"
        ) from error


def _no_checkpoint(directory: Path) -> CheckpointError:
    return CheckpointError(
        f"{directory}: has no checkpoint; give the folder of a run of `fedlm simulate`, or of a cell of a comparison, "
        "that has gone on for at least checkpoint_every rounds"
    )
