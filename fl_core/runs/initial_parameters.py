"""Parameters of an earlier run, for another run to begin with."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedlm.fl_core.errors import CheckpointError, ConfigurationError, setting
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
from fedlm.fl_core.privacy.origins.vocabulary_origin import ORIGIN_FIELD
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.processes import from_first, is_first, together
from fedlm.fl_core.runs.checkpoints import Checkpoints, parameters_digest
from fedlm.fl_core.runs.frozen_parameters import is_kept, keep_frozen, read_frozen, whole_parameters
from fedlm.fl_core.runs.places import place_in
from fedlm.models.base import Params
from fedlm.models.registry import same_model

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
    from fedlm.fl_core.privacy.statement import Statement


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


def read_parameters(
    folder: Path,
    vocabulary: str,
    model: str,
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
        found = _read(folder, vocabulary, model, initial_data, training_data)
    except CheckpointError:
        if recorded is not None and (recorded.folder == folder.absolute() or not (folder / "checkpoints").is_dir()):
            return recorded
        raise
    # A folder of another name is another run, which is to be refused.
    has_gone_on = recorded is not None and recorded.folder == folder.absolute() and recorded.sha256 != found.sha256
    return recorded if recorded is not None and has_gone_on else found


def _read(
    folder: Path, vocabulary: str, model: str, initial_data: InitialData, training_data: str | None
) -> InitialParameters:
    """Read the newest parameters of a run as they are now; see `read_parameters`."""
    directory = folder / "checkpoints"
    if not directory.is_dir():
        raise CheckpointError(
            f"{folder}: not the folder of a run, for it holds no checkpoints; give the {setting('out')} of one"
        )
    with Checkpoints(directory) as checkpoints:
        rounds = checkpoints.latest_round()
        if not rounds:
            raise CheckpointError(f"{folder}: this run has no checkpoint yet; let it go on until it has one")
        about, stored = checkpoints.restore_about(rounds), stored_parameters(checkpoints, rounds)
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
    parent, ancestors = _training_of(folder, ledger, about, rounds, digest)
    params = whole_parameters(folder, about, stored)
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


_NOT_KNOWN = "its folder is gone or has gone on, and what it promised is not known any more; see the ancestry"


def _training_of(
    folder: Path, ledger: "PrivacyLedger | None", about: dict[str, Any], rounds: int, digest: str
) -> tuple[Phase, tuple[Phase, ...]]:
    """Describe the training that parameters come from, and give what went before it. Raises CheckpointError where
    they are not what the run has released."""
    if ledger is None:
        phase = Phase(
            command=command_of(about),
            folder=str(folder.absolute()),
            steps=0 if IMPORTED in about else rounds,
            parameters_sha256=digest,
            training_data_sha256=about.get("training_data_sha256"),
            people="same",
            not_private=why_not_private(about),
            claim=_claim_in(folder, about),
            vocabulary=about.get(ORIGIN_FIELD),
        )
        return phase, recorded_ancestry(about)
    from fedlm.fl_core.privacy.statement import training_in

    released = [one for one in ledger.releases if one.rounds == rounds]
    if not released or released[-1].parameters != digest:
        raise CheckpointError(
            f"{folder}: the checkpoint of {rounds} rounds is none that this private run's ledger names; it is damaged, "
            "or comes from somewhere else. Give another run"
        )
    phase = training_in(ledger, str(folder.absolute()))._replace(steps=rounds, parameters_sha256=digest)
    return phase, recorded_ancestry(about)


def _claim_in(folder: Path, about: dict[str, Any]) -> dict[str, Any] | None:
    """Read what the publisher of imported parameters claims. Raises CheckpointError where that is damaged."""
    try:
        claim = PublisherClaim.from_json(about.get(CLAIM_FIELD) if IMPORTED in about else None)
    except ConfigurationError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    return None if claim is None else claim.as_json()


def ledger_in(folder: Path) -> "PrivacyLedger | None":
    """Read the ledger of a run; None where the run is not private. Raises LedgerError where it is damaged, or ends
    before the newest checkpoint."""
    path = folder / PRIVACY_FOLDER / LEDGER_FILE
    if not path.exists():
        return None
    from fedlm.fl_core.privacy.record.ledger import LedgerError, PrivacyLedger

    # Before the ledger, which a run that goes on writes to first.
    names = [path.name for path in (folder / "checkpoints").glob("*")]
    newest = max((int(name) for name in names if name.isdecimal()), default=0)
    ledger = PrivacyLedger(path)
    known = max((release.rounds for release in ledger.releases), default=0)
    if ledger.records and newest > known:
        raise LedgerError(
            f"{path}: it ends with {known} rounds, but there is a checkpoint of {newest}: the ledger was cut off, or "
            "is an older copy; put back the one that belongs to the checkpoints"
        )
    return ledger if ledger.records else None


def _data_of(about: dict[str, Any], folder: Path) -> str:
    """Say where the tokenizer of a run lay, as a checkpoint tells it."""
    return str(folder) if IMPORTED in about else settings_in(about).get("data", "ITS_DATA_SET")


def stored_parameters(checkpoints: Checkpoints, rounds: int) -> Any:
    """Read the parameters of a checkpoint, whatever else lies beside them. Raises CheckpointError where it cannot be
    read, or has parameters that are not finite."""
    state = checkpoints.restore_arrays(rounds)
    found = state.get("server", state)["params"]
    refuse_not_finite(found, f"{checkpoints.directory.parent}: the checkpoint of {rounds} rounds or steps")
    return found


def refuse_not_finite(arrays: Any, what: str) -> None:
    """Refuse parameters of which nothing good can be computed. Raises CheckpointError, which begins with `what`."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(arrays)[0]:
        if not (finite := np.isfinite(leaf)).all():
            raise CheckpointError(
                f"{what} has {np.size(leaf) - np.count_nonzero(finite):,} parameters in {_name(path)} that are no "
                "finite numbers: what trained them diverged; give another run, or train again with a lower learning "
                "rate"
            )


def fit_parameters(arrays: Any, like: Params, folder: Path) -> Params:
    """Put parameters, as `stored_parameters` reads them, into a model's structure. Raises CheckpointError where they
    are of another model."""
    wanted, structure = jax.tree_util.tree_flatten_with_path(like)
    found = {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(arrays)[0]}
    names = [_name(path) for path, _ in wanted]
    odd = sorted(set(names) ^ set(found)) or [
        f"{name} {found[name].shape}, not {leaf.shape}"
        for name, (_, leaf) in zip(names, wanted, strict=True)
        if found[name].shape != leaf.shape
    ]
    if odd:
        raise CheckpointError(
            f"{folder}: holds the parameters of another model (they differ in {', '.join(odd[:3])}); give "
            "a run of the same model"
        )
    return jax.tree_util.tree_unflatten(structure, [np.asarray(found[name]) for name in names])


def statement_in(folder: Path) -> "Statement | None":
    """State what a run promises now, finished or not: by its ledger, since anybody can write a summary. Returns None
    where there is no ledger. Raises LedgerError where it is damaged."""
    ledger = ledger_in(folder)
    if ledger is None:
        return None
    from fedlm.fl_core.privacy.statement import state

    return state(ledger)


def restated(summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Put what a run's ledger states in the place of what its summary says of its privacy; without a ledger it promises
    nothing. Raises LedgerError where the ledger is damaged."""
    found = statement_in(folder)
    if found is not None:
        return summary | {"noise_multiplier": found.own.noise_multiplier, **found.as_json()}
    promises = summary.get("privacy_guarantee") or not str(summary.get("privacy", NOT_PRIVATE)).startswith(NOT_PRIVATE)
    if not promises and settings_in(summary).get("privacy", "none") == "none":
        return summary
    why = "its ledger is missing"
    return summary | {
        "noise_multiplier": None,
        "privacy": f"{NOT_PRIVATE}: {why}",
        "privacy_guarantee": None,
        "not_private_because": [why],
    }


def stated_privacy(folder: Path) -> str:
    """Say in a sentence what `statement_in` finds."""
    found = statement_in(folder)
    return NOT_PRIVATE if found is None else found.sentence()


def _name(path: tuple) -> str:
    return "/".join(str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path)
