"""What a run has come to: its stored parameters, and what its ledger states."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.privacy.origins.ancestry import (
    NOT_PRIVATE,
    settings_in,
)
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.models.base import Params, parameter_name

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
    from fedlm.fl_core.privacy.statement import Statement


def ledger_in(folder: Path) -> "PrivacyLedger | None":
    """Read the ledger of a run; None where the run is not private. Raises LedgerError where it is damaged, or ends
    before the newest checkpoint."""
    path = folder / PRIVACY_FOLDER / LEDGER_FILE
    if not path.exists():
        return None
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger, cut_off

    # Before the ledger, which a run that goes on writes to first.
    names = [path.name for path in (folder / "checkpoints").glob("*")]
    newest = max((int(name) for name in names if name.isdecimal()), default=0)
    ledger = PrivacyLedger(path)
    known = max((release.rounds for release in ledger.releases), default=0)
    if ledger.records and newest > known:
        raise cut_off(path, known, newest)
    return ledger if ledger.records else None


class Newest(NamedTuple):
    """The newest checkpoint of a run."""

    about: dict[str, Any]  # what it says of the run
    params: Any  # see `stored_parameters`
    steps: int  # or rounds, that they have seen


def checkpoints_of(run: Path) -> Path:
    """Find the checkpoints of a run. Raises CheckpointError where the folder is none of a run."""
    found = run / "checkpoints"
    if not found.is_dir():
        raise CheckpointError(
            f"{run}: not the folder of a run, for it holds no checkpoints; give the {setting('out')} of one"
        )
    return found


def newest_checkpoint(run: Path) -> Newest:
    """Read the newest checkpoint of a run. Raises CheckpointError where there is none, or it cannot be read."""
    with Checkpoints(checkpoints_of(run)) as checkpoints:
        steps = checkpoints.latest_round()
        if not steps:
            raise CheckpointError(f"{run}: this run has no checkpoint yet; let it go on until it has one")
        return Newest(checkpoints.restore_about(steps), stored_parameters(checkpoints, steps), steps)


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
                f"{what} has {np.size(leaf) - np.count_nonzero(finite):,} parameters in {parameter_name(path, '/')} "
                "that are no finite numbers: what trained them diverged; give another run, or train again with a lower "
                "learning rate"
            )


def fit_parameters(arrays: Any, like: Params, folder: Path) -> Params:
    """Put parameters, as `stored_parameters` reads them, into a model's structure. Raises CheckpointError where they
    are of another model."""
    wanted, structure = jax.tree_util.tree_flatten_with_path(like)
    found = {parameter_name(path, "/"): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(arrays)[0]}
    names = [parameter_name(path, "/") for path, _ in wanted]
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
        return summary | {"noise_multiplier": found.noise_multiplier, **found.as_json()}
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
