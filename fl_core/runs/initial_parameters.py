"""Parameters of an earlier run, for another run to begin with."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.runs.checkpoints import Checkpoints, parameters_digest
from fedlm.models.base import Params


class InitialParameters(NamedTuple):
    """What was read of an earlier run."""

    folder: Path
    rounds: int
    arrays: Any  # its parameters, NumPy arrays in dictionaries and lists
    sha256: str
    privacy: str  # what that run's summary states of its privacy

    def about(self) -> dict[str, Any]:
        """Make the record for the summary of the run that begins with these parameters."""
        return {
            "folder": str(self.folder),
            "rounds": self.rounds,
            "parameters_sha256": self.sha256,
            "privacy": self.privacy,
        }

    def fit(self, fresh: Params) -> Params:
        """Put the arrays into the structure of a model's fresh parameters; see `fit_parameters`."""
        return fit_parameters(self.arrays, fresh, self.folder)


def read_parameters(folder: Path, vocabulary: str) -> InitialParameters:
    """Read the newest parameters of a run. Raises CheckpointError where there is no checkpoint, or it is of a
    vocabulary with another fingerprint."""
    directory = folder / "checkpoints"
    if not directory.is_dir():
        raise CheckpointError(f"{folder}: not the folder of a run, for it holds no checkpoints; give the --out of one")
    with Checkpoints(directory) as checkpoints:
        rounds = checkpoints.latest_round()
        if not rounds:
            raise CheckpointError(f"{folder}: this run has no checkpoint yet; let it go on until it has one")
        about = checkpoints.restore_about(rounds)
        if about["vocabulary"] != vocabulary:
            raise CheckpointError(
                f"{folder}: was trained on another vocabulary than that of the data; import the data with its tokenizer"
            )
        params = stored_parameters(checkpoints, rounds)
    return InitialParameters(folder, rounds, params, parameters_digest(params), stated_privacy(folder))


def stored_parameters(checkpoints: Checkpoints, rounds: int) -> Any:
    """Read the parameters of a checkpoint, whatever else lies beside them. Raises CheckpointError where it cannot be
    read."""
    state = checkpoints.restore_arrays(rounds)
    return state.get("server", state)["params"]


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


def stated_privacy(folder: Path) -> str:
    """Repeat what the summary of a run states of its privacy. Returns the statement, or that there is none. Raises
    CheckpointError where there is a summary that cannot be read."""
    path = folder / "summary.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["privacy"] if path.exists() else "NOT STATED: not finished"
    except (json.JSONDecodeError, KeyError) as error:
        raise CheckpointError(f"{path}: not a summary of ours ({error}); remove it, or give another run") from error


def _name(path: tuple) -> str:
    return "/".join(str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path)
