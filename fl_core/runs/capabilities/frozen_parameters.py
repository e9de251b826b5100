"""The frozen parameters of a run that trains adapters, kept once in its folder, and the whole model made of both.

A copy, since what `init_from` names may go on, be moved or be removed: the run goes on, is scored and exported by what
is in its own folder. It is of the size of one model; checkpoints hold adapters alone.
"""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.origins.ancestry import settings_in
from fedlm.fl_core.runs.capabilities.lora_settings import recorded_lora
from fedlm.fl_core.runs.files.checkpoints import Checkpoints, parameters_digest
from fedlm.models.base import Params
from fedlm.models.layers.lora import merge

FROZEN_FOLDER = "frozen"
"""In the run's folder."""
_ONLY = 1  # a checkpoint has a number, and it is not 0


def keep_frozen(run: Path, params: Params, sha256: str) -> None:
    """Keep a copy of frozen parameters in a run's folder, in place of any other. Raises DiskError where it cannot be
    written."""
    if is_kept(run):
        try:
            read_frozen(run, sha256)
        except CheckpointError:
            # A run that was interrupted before its first checkpoint may begin again with other parameters.
            shutil.rmtree(run / FROZEN_FOLDER)
    with Checkpoints(run / FROZEN_FOLDER) as checkpoints:
        checkpoints.save(_ONLY, {"params": params}, {"parameters_sha256": sha256})


def read_frozen(run: Path, sha256: str) -> Any:
    """Read the frozen parameters of a run, NumPy arrays in dictionaries and lists. Raises CheckpointError where they
    are missing, or not those with the fingerprint."""
    folder = run / FROZEN_FOLDER
    if not is_kept(run):
        raise CheckpointError(
            f"{folder}: the parameters that this run's adapters belong to are missing; put the folder back as it was"
        )
    try:
        with Checkpoints(folder) as checkpoints:
            params = checkpoints.restore_arrays(_ONLY)["params"]
    except CheckpointError as error:
        # Of other checkpoints there is one before, so that what is damaged may be removed.
        raise CheckpointError(
            f"{folder}: the parameters that this run's adapters belong to are damaged; put the folder back as it was"
        ) from error
    if parameters_digest(params) != sha256:
        raise CheckpointError(
            f"{folder}: holds other parameters than this run's adapters were trained beside; put back what was there"
        )
    return params


def with_adapters(run: Path, about: dict[str, Any], stored: Any) -> Any:
    """Make of what a checkpoint holds the parameters of the whole model, with adapters added to what they belong to.

    Args:
      about: what the checkpoint, or the ledger, says of the run.
      stored: parameters of the checkpoint.

    Raises:
      CheckpointError: the run trained adapters, and what they belong to is missing, or has changed.
    """
    config = recorded_lora(settings_in(about))
    if config is None:
        return stored
    frozen = read_frozen(run, about["initial_parameters_sha256"])
    return jax.tree_util.tree_map(np.asarray, merge(config, frozen, stored, _exact_product))


def _exact_product(a: Any, b: Any) -> Any:
    """Multiply as every machine does to the last bit, so that fingerprints of the whole model agree."""
    product = np.zeros((a.shape[0], b.shape[1]))
    for column, row in zip(np.asarray(a, np.float64).T, np.asarray(b, np.float64), strict=True):
        product += column[:, None] * row
    return product


def is_kept(run: Path) -> bool:
    """Say whether a run's folder has a copy of frozen parameters."""
    return (run / FROZEN_FOLDER / str(_ONLY)).is_dir()
