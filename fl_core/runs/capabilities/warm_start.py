"""A warm start: a run begins with the parameters of an earlier one, and states what these went through."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import numpy as np

from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.privacy.origins.ancestry import (
    CLAIM_FIELD,
    IMPORTED,
    NOT_PRIVATE,
    InitialData,
    Phase,
    command_of,
    recorded_ancestry,
    settings_in,
    training_behind,
    why_not_private,
)
from fedlm.fl_core.privacy.origins.publisher_claims import PublisherClaim
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD
from fedlm.fl_core.processes import from_first, is_first, together
from fedlm.fl_core.runs.capabilities.frozen_parameters import is_kept, keep_frozen, read_frozen, with_adapters
from fedlm.fl_core.runs.capabilities.interface import Capability, Ended, Opening
from fedlm.fl_core.runs.capabilities.warm_start_settings import WarmStartSettings
from fedlm.fl_core.runs.files.checkpoints import Checkpoints, parameters_digest
from fedlm.fl_core.runs.files.places import place_in
from fedlm.fl_core.runs.identity import Fact
from fedlm.fl_core.runs.outcome import fit_parameters, ledger_in, newest_checkpoint, stated_privacy
from fedlm.models.base import Params
from fedlm.models.registry import same_model

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger


class InitialParameters(NamedTuple):
    """What was read of an earlier run."""

    folder: Path
    rounds: int
    # its parameters, NumPy arrays in dictionaries and lists; None where the run goes on by what it has written down
    arrays: Any
    sha256: str  # of the whole model's
    privacy: str  # what that run states of its privacy
    ancestry: tuple[Phase, ...]  # what the parameters went through, seen from the run that begins with them

    def about(self) -> dict[str, Any]:
        """Make the record for the summary of the run that begins with these parameters."""
        return {
            "folder": str(self.folder),
            "rounds": self.rounds,
            "parameters_sha256": self.sha256,
            "privacy": self.privacy,
        }

    def fit(self, fresh: Params) -> Params:
        """Put the arrays into the structure of a model's fresh parameters; see `fit_parameters`. A run that has a
        checkpoint to go on from needs no more than the structure."""
        return fresh if self.arrays is None else fit_parameters(self.arrays, fresh, self.folder)

    def frozen(self, like: Params, run: Path) -> Params:
        """Give the parameters that adapters are trained beside, in all processes.

        Args:
          like: the model's parameters, of which shapes are enough.
          run: the folder of the run that trains them, read where the run that goes on has outlived the other folder.

        Raises:
          CheckpointError: they are of another model, or neither folder has them.
        """

        def find() -> Params:
            arrays = read_frozen(run, self.sha256) if self.arrays is None else self.arrays
            return fit_parameters(arrays, like, self.folder)

        def of_first() -> Params:
            return find() if is_first() else jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)

        return from_first(together(of_first))

    def keep(self, run: Path) -> None:
        """Keep a copy of the parameters in the folder of a run that trains adapters beside them; all processes call
        it. Raises DiskError where it cannot be written."""
        together(lambda: keep_frozen(run, self.arrays, self.sha256) if is_first() and self.arrays is not None else None)


class WarmStart(Capability):
    """A run begins with the parameters of an earlier one."""

    facts: ClassVar[Mapping[str, Fact]] = {
        "initial_parameters_sha256": Fact(None, "set of first parameters", ("initial_parameters", "parameters_sha256"))
    }
    unsaid: ClassVar[Mapping[str, Any]] = {"initial_parameters": None}

    def __init__(self, initial: InitialParameters):
        """Begin with parameters that were read."""
        self.initial = initial

    @classmethod
    def of(cls, opening: Opening) -> "WarmStart | None":
        initial = initial_of(opening)
        return None if initial is None else cls(initial)

    def origins(self, origins: Origins) -> Origins:
        return origins._replace(ancestry=self.initial.ancestry)

    def first(self, params: Params) -> Params:
        return self.initial.fit(params)

    def fingerprints(self) -> dict[str, str | None]:
        return {"initial_parameters_sha256": self.initial.sha256}

    def summary(self, ended: Ended) -> dict[str, Any]:
        return {"initial_parameters": self.initial.about()}


def initial_of(opening: Opening) -> InitialParameters | None:
    """Read the parameters that a run begins with; None where its settings name none. Raises what `read_parameters`
    does."""
    settings = opening.part(WarmStartSettings)
    if settings.init_from is None:
        return None
    return read_parameters(
        settings.init_from,
        opening.vocabulary,
        opening.settings.model,
        initial_data=settings.initial_data,
        training_data=opening.training_data,
        going_on=None if opening.needs_first else opening.folder,
    )


def read_parameters(
    folder: Path,
    vocabulary: str,
    model: str,
    *,
    initial_data: InitialData = "same",
    training_data: str | None = None,
    going_on: Path | None = None,
) -> InitialParameters:
    """Read the newest parameters of a run, and what they went through.

    Args:
      vocabulary: fingerprint of the tokenizer that they must belong to.
      model: the name of the model that they must be of.
      initial_data: what the user says of the text that they were made from.
      training_data: fingerprint of the training data of the run that begins with them; None where nobody knows it.
      going_on: folder of the run that begins with them, or goes on: where that has been begun, what it has written down
        does, if their own folder is gone or has gone on. None where the parameters themselves are needed.

    Raises:
      CheckpointError: there is no checkpoint, it is of something else, or it is not one that the run has released.
      ConfigurationError: what the user says is not so.
    """
    recorded = None if going_on is None else _recorded_in(going_on)
    try:
        found = _read(folder, vocabulary, model, initial_data=initial_data, training_data=training_data)
    except CheckpointError:
        if recorded is not None and (recorded.folder == folder.absolute() or not (folder / "checkpoints").is_dir()):
            return recorded
        raise
    # A folder of another name is another run, which is to be refused.
    has_gone_on = recorded is not None and recorded.folder == folder.absolute() and recorded.sha256 != found.sha256
    return recorded if recorded is not None and has_gone_on else found


def _read(
    folder: Path, vocabulary: str, model: str, *, initial_data: InitialData, training_data: str | None
) -> InitialParameters:
    """Read the newest parameters of a run as they are now; see `read_parameters`."""
    about, stored, rounds = newest_checkpoint(folder)
    ledger = ledger_in(folder)
    # Anybody can change what a checkpoint says.
    about = about if ledger is None else ledger.about
    if about["vocabulary"] != vocabulary:
        raise CheckpointError(
            f"{folder}: was trained on another vocabulary than that of the data; import the data with its own: "
            f"fedlm data import SOURCE ... --vocabulary {_data_of(about, folder)}/tokenizer.json --out FOLDER"
        )
    found = place_in(about, "model")
    if not same_model(str(found), model):
        raise CheckpointError(
            f"{folder}: holds the parameters of another model, {found}, not {model}; give a run of the same model"
        )
    digest = parameters_digest(stored)
    parent, ancestors = _training_of(folder, ledger, about, _Reached(rounds, digest))
    params = with_adapters(folder, about, stored)
    digest = digest if params is stored else parameters_digest(params)
    behind = training_behind(ancestors, parent, initial_data, training_data)
    return InitialParameters(folder, rounds, params, digest, stated_privacy(folder), behind)


def _recorded_in(begun: Path) -> InitialParameters | None:
    """Read what a run has written down of its first parameters; None where it had none, or needs them still."""
    if not (begun / "checkpoints").is_dir():
        return None
    with Checkpoints(begun / "checkpoints") as checkpoints:
        rounds = checkpoints.latest_round()
        if not rounds and not is_kept(begun):
            return None
        # Written before the first checkpoint, and nobody can change it unseen.
        ledger = ledger_in(begun)
        about = ledger.about if ledger is not None else checkpoints.restore_about(rounds) if rounds else {}
    ancestry, digest = recorded_ancestry(about), about.get("initial_parameters_sha256")
    if digest is None or not ancestry:
        return None
    last = ancestry[-1]
    # What it promised depended on what went before it, as seen from there.
    privacy = NOT_PRIVATE if last.plan is None or last.not_private is not None else _NOT_KNOWN
    return InitialParameters(Path(last.folder), last.steps, None, digest, privacy, ancestry)


_NOT_KNOWN = "its folder is gone or has gone on, so nobody knows what it promised; see the ancestry"


class _Reached(NamedTuple):
    """How far parameters have come."""

    rounds: int
    sha256: str


def _training_of(
    folder: Path, ledger: "PrivacyLedger | None", about: dict[str, Any], reached: _Reached
) -> tuple[Phase, tuple[Phase, ...]]:
    """Describe the training that parameters come from, and give what went before it. Raises CheckpointError where
    they are not what the run has released."""
    if ledger is None:
        phase = Phase(
            command=command_of(about),
            folder=str(folder.absolute()),
            steps=0 if IMPORTED in about else reached.rounds,
            parameters_sha256=reached.sha256,
            training_data_sha256=about.get("training_data_sha256"),
            people="same",
            not_private=why_not_private(about),
            claim=_claim_in(folder, about),
            vocabulary=about.get(ORIGIN_FIELD),
        )
        return phase, recorded_ancestry(about)
    from fedlm.fl_core.privacy.joint_statement import training_in

    released = [one for one in ledger.releases if one.rounds == reached.rounds]
    if not released or released[-1].parameters != reached.sha256:
        raise CheckpointError(
            f"{folder}: the ledger of this private run does not name its checkpoint of {reached.rounds} rounds; the "
            "checkpoint is damaged, or comes from another run. Give another run"
        )
    phase = training_in(ledger, str(folder.absolute()))
    phase = phase._replace(steps=reached.rounds, parameters_sha256=reached.sha256)
    return phase, recorded_ancestry(about)


def _claim_in(folder: Path, about: dict[str, Any]) -> dict[str, Any] | None:
    """Read what the publisher of imported parameters claims. Raises CheckpointError where that is damaged."""
    try:
        claim = PublisherClaim.from_json(about.get(CLAIM_FIELD) if IMPORTED in about else None)
    except ConfigurationError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    return None if claim is None else claim.as_json()


def _data_of(about: dict[str, Any], folder: Path) -> str:
    """Say where the tokenizer of a run lay, as a checkpoint tells it."""
    return str(folder) if IMPORTED in about else settings_in(about).get("data", "ITS_DATA_SET")
