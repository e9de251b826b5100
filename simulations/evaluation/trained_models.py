"""A run on disk, opened to be used: its settings, its data and the parameters of its last checkpoint."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedlm.fl_core.errors import CheckpointError, ConfigurationError, DataError, setting
from fedlm.fl_core.privacy.ancestry import IMPORTED
from fedlm.fl_core.reattention import ERRORS_FACT, read_errors
from fedlm.fl_core.runs.frozen_parameters import whole_parameters
from fedlm.fl_core.runs.initial_parameters import fit_parameters
from fedlm.fl_core.runs.publishing import released
from fedlm.fl_core.runs.recorded_runs import whole_checkpoints
from fedlm.fl_core.runs.run_lock import run_lock
from fedlm.models.base import Model, Params
from fedlm.models.precision import Precision, resolve_precision, with_precision
from fedlm.models.registry import MODELS, create_model
from fedlm.simulations.data.federated_data import StoredData
from fedlm.simulations.data.store.token_store import TokenStore

NOT_COVERED = "what is measured on people's text is measured without noise, and no promise covers it"
"""What has to be said beside what a model's run states of its privacy, where its model is scored on such text."""


class TrainedModel(NamedTuple):
    """The model of a run of any kind, with at least one checkpoint.

    Example:
      >>> "params" in TrainedModel._fields and "model" in TrainedModel._fields
      True
    """

    command: str  # that the run is of, `simulate`, `pretrain` or `model import`
    # JSON-able settings of the run, with `model`, `data`, `length` and `precision` among them, and for `pretrain`
    # what `fedlm.simulations.pretraining.privacy_units.open_units` takes
    settings: dict[str, Any]
    model: Model  # with the data's vocabulary, in the policy's precision
    precision: Precision
    params: Params
    steps: int  # how many rounds, or steps, that checkpoint has seen
    store: TokenStore

    def split(self, name: str) -> StoredData:
        """Open a split of the data, cut to the run's sequence length."""
        return StoredData(self.store.split(name), self.settings["length"])


def open_model(directory: Path, data: Path | None = None) -> TrainedModel:
    """Open the model of a run of any kind.

    Args:
      data: where its data set lies now; where it was when the run was begun, if it is not given.

    Raises:
      CheckpointError: the folder has no checkpoint, or one that cannot be read, or that a private run has not released.
      DataError: the data set is missing, or another than that of the run.
      ConfigurationError: a process is writing into the folder.

    Example:
      >>> open_model(Path("runs/cifg")).params  # doctest: +SKIP
      >>> try:
      ...     open_model(Path("nothing"))
      ... except CheckpointError as error:
      ...     print(str(error).partition(";")[0])
      nothing: has no checkpoint
    """
    if not whole_checkpoints(directory):
        raise _no_checkpoint(directory)
    with run_lock(directory):
        return read_model(directory, data)


def read_model(directory: Path, data: Path | None = None) -> TrainedModel:
    """Open the model of a run that this process is writing, or whose lock it has; see `open_model`."""
    about, trained, steps = released(directory)
    command, settings = _settings(directory, about)
    if data is None and IMPORTED in about:
        raise ConfigurationError(
            f"{directory}: was imported, and has no data of its own; give {setting('data')}, a data set with its "
            f"tokenizer: fedlm data import SOURCE ... --vocabulary {directory}/tokenizer.json --out FOLDER"
        )
    store = _open_data(directory, Path(settings["data"])) if data is None else TokenStore.open(data)
    if store.fingerprint != about["vocabulary"]:
        home = settings.get("data", directory)
        raise DataError(
            f"{store.path}: has another vocabulary than the run in {directory} was trained with; give the data set "
            f"of the run, which was {home}, or one with its tokenizer: fedlm data import SOURCE "
            f"... --vocabulary {home}/tokenizer.json --out FOLDER"
        )
    precision = resolve_precision(settings["precision"], jax.default_backend())
    corrected = about.get(ERRORS_FACT)
    errors = None if corrected is None else read_errors(directory, corrected)
    model = create_model(settings["model"], store.vocabulary_size, store.special_tokens, errors)
    model = with_precision(model, precision)
    like = jax.eval_shape(model.init, jax.random.key(0))
    params = fit_parameters(whole_parameters(directory, about, trained), like, directory)
    return TrainedModel(command, settings, model, precision, params, steps, store)


def _open_data(directory: Path, home: Path) -> TokenStore:
    if not home.exists():
        raise DataError(
            f"{home}: there is no such folder, and the data set of the run in {directory} was there; say with "
            f"{setting('data')} where it is now"
        )
    return TokenStore.open(home)


_OF_ANY_RUN = ("model", "data", "length", "precision", "seed")
_OF_PRETRAINING = (*_OF_ANY_RUN, "unit", "packing", "sequences_per_unit")
"""Settings without which the record of a run is of no use."""


def _settings(directory: Path, about: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return which command a checkpoint is of, and the settings of the run."""
    try:
        if IMPORTED in about:
            named = about[IMPORTED]["model"]
            # The folder may have been moved since.
            return "model import", about[IMPORTED] | {
                "model": named if named in MODELS else str(directory / "model.json")
            }
        command = "pretrain" if "pretraining" in about else "simulate"
        settings = about["pretraining"] if command == "pretrain" else about["experiment"]
        if "data" not in settings and "minimum_reports" in settings:
            raise CheckpointError(
                f"{directory}: a run of `fedlm serve`, whose text is on its clients' devices; give one of "
                "`fedlm simulate` or `fedlm pretrain`"
            )
        return command, settings | {
            name: settings[name] for name in (_OF_PRETRAINING if command == "pretrain" else _OF_ANY_RUN)
        }
    except (KeyError, TypeError) as error:
        raise unknown_settings(directory, error) from error


def unknown_settings(directory: Path, error: Exception) -> CheckpointError:
    """Make the error that says that a run's record of its settings cannot be read."""
    return CheckpointError(
        f"{directory}: the settings in its checkpoint are not those of a run of this version ({error}); open it "
        "with the version that wrote it"
    )


def _no_checkpoint(directory: Path) -> CheckpointError:
    return CheckpointError(
        f"{directory}: has no checkpoint; give the folder of a run of `fedlm simulate` or `fedlm pretrain`, or of a "
        "cell of a comparison, that has gone on for at least checkpoint_every rounds"
    )
