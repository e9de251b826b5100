"""A run on disk, opened to be used: its settings, its data and the parameters of its last checkpoint."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedlm.fl_core.errors import CheckpointError, ConfigurationError, DataError, setting
from fedlm.fl_core.privacy.origins.ancestry import IMPORTED
from fedlm.fl_core.privacy.origins.vocabulary_origin import TOKENIZER_FILE
from fedlm.fl_core.runs.capabilities.recorded import recorded_constants
from fedlm.fl_core.runs.files.places import place_in
from fedlm.fl_core.runs.files.run_lock import run_lock
from fedlm.fl_core.runs.outcome import fit_parameters
from fedlm.fl_core.runs.recorded_runs import whole_checkpoints
from fedlm.fl_core.runs.statements.publishing import released
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.models.base import Model, Params, parameter_count
from fedlm.models.precision import Precision, resolve_precision, with_precision
from fedlm.models.registry import MODELS, create_model
from fedlm.models.shown import facts_table, in_a_line
from fedlm.simulations.data.federated_data import StoredData
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

NOT_COVERED = "these scores are measured on people's text without noise, and no promise covers them"
"""What has to be said beside what a model's run states of its privacy, where its model is scored on such text."""


class TrainedModel(NamedTuple):
    """The model of a run of any kind, with at least one checkpoint.

    `model.apply(params, tokens)` gives its logits, and `tokenizer` makes tokens of text, and text of tokens.

    Example:
      >>> "params" in TrainedModel._fields and "model" in TrainedModel._fields
      True
    """

    folder: Path  # of the run
    command: str  # that the run is of, `simulate`, `pretrain` or `model import`
    # JSON-able settings of the run, with `model`, `data`, `length` and `precision` among them, and for `pretrain`
    # what `fedlm.simulations.pretraining.batches.privacy_units.open_units` takes
    settings: dict[str, Any]
    model: Model  # with the data's vocabulary, in the policy's precision
    precision: Precision
    params: Params
    steps: int  # how many rounds, or steps, that checkpoint has seen
    tokenizer: Tokenizer
    data: TokenStore | None  # None for imported weights that were opened without a data set

    def __repr__(self) -> str:
        return in_a_line(self, **self._facts())

    def _repr_html_(self) -> str:
        return facts_table(self._facts() | {"parameters": parameter_count(self.model)})

    def _facts(self) -> dict[str, Any]:
        data = None if self.data is None else str(self.data.path)
        model = self.settings["model"]
        return {"folder": str(self.folder), "of": self.command, "model": model, "steps": self.steps, "data": data}

    @property
    def store(self) -> TokenStore:
        """The data set. Raises ConfigurationError where there is none."""
        if self.data is None:
            raise ConfigurationError(
                f"{self.folder}: was imported, and has no data of its own; give {setting('data')}, a data set with its "
                f"tokenizer: fedlm data import SOURCE ... --vocabulary {self.folder}/{TOKENIZER_FILE} --out FOLDER"
            )
        return self.data

    def split(self, name: str) -> StoredData:
        """Open a split of the data, cut to the run's sequence length."""
        return StoredData(self.store.split(name), self.settings["length"])


@checked_arguments
def open_model(directory: StrPath, data: StrPath | None = None) -> TrainedModel:
    """Open the model of a run of any kind.

    Args:
      directory: folder of the run, or of imported weights.
      data: where its data set lies now; where it was when the run was begun, if it is not given. Imported weights need
        none.

    Raises:
      CheckpointError: the folder has no checkpoint, or one that cannot be read, or that a private run has not released.
      DataError: the data set is missing, or another than that of the run.
      ConfigurationError: a process is writing into the folder.

    Example:
      >>> open_model("runs/cifg").params  # doctest: +SKIP
      >>> try:
      ...     open_model("nothing")
      ... except CheckpointError as error:
      ...     print(str(error).partition(";")[0])
      nothing: there is no such folder
    """
    folder = Path(directory)
    if not whole_checkpoints(folder):
        raise _no_checkpoint(folder)
    with run_lock(folder):
        return read_model(folder, None if data is None else Path(data))


def read_model(directory: Path, data: Path | None = None) -> TrainedModel:
    """Open the model of a run that this process is writing, or whose lock it has; see `open_model`."""
    about, _, params, steps = released(directory)
    command, settings = _settings(directory, about)
    store = _open_data(directory, about) if data is None else TokenStore.open(data)
    tokenizer = Tokenizer.load(directory / TOKENIZER_FILE) if store is None else store.tokenizer
    if tokenizer.fingerprint != about["vocabulary"]:
        home = settings.get("data", directory)
        raise DataError(
            f"{directory if store is None else store.path}: has another vocabulary than the run in {directory} was "
            f"trained with; give the data set of the run, which was {home}, or one with its tokenizer: fedlm data "
            f"import SOURCE ... --vocabulary {home}/tokenizer.json --out FOLDER"
        )
    precision = resolve_precision(settings["precision"], jax.default_backend())
    constants = recorded_constants(directory, about)
    named = settings["model"] if IMPORTED in about else str(place_in(about, "model"))
    model = create_model(named, tokenizer.vocabulary_size, tokenizer.special_tokens, **constants)
    model = with_precision(model, precision)
    like = jax.eval_shape(model.init, jax.random.key(0))
    params = fit_parameters(params, like, directory)
    return TrainedModel(directory, command, settings, model, precision, params, steps, tokenizer, store)


def _open_data(directory: Path, about: dict[str, Any]) -> TokenStore | None:
    home = place_in(about, "data")
    if home is None:
        return None
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
    what = "has no checkpoint" if directory.exists() else "there is no such folder"
    return CheckpointError(
        f"{directory}: {what}; give the folder of a run of `fedlm simulate` or `fedlm pretrain`, or of a "
        f"cell of a comparison, that has gone on for at least {setting('checkpoint_every')} rounds"
    )
