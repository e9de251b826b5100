"""What a device keeps to itself from round to round of a run, in a file that never leaves it."""

import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import ClientError
from fedlm.fedlm_client.files import replace_whole


class KeptState:
    """What was kept for the run that the device took part in last."""

    def __init__(self, path: Path | None = None):
        """Name the file, which need not exist yet; what is kept lasts as long as the process where None."""
        self._path = path
        self._content: bytes | None = None

    def read(self, asked: messages.RoundConfiguration, like: Any) -> Any:
        """Read what was kept for the run that asks for a round, of the structure of shapes; None where that is nothing.
        Raises ClientError where the file cannot be read."""
        leaves, structure = jax.tree_util.tree_flatten(like)
        try:
            if self._path is not None and self._path.exists():
                self._content = self._path.read_bytes()
            if not leaves or self._content is None:
                return None
            found = load(self._content)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ClientError(
                f"{self._path}: not the layers that this device keeps ({error}); put the file back as it was, or "
                "remove it to begin with those of a new person"
            ) from error
        kept = [found.get(f"{_run(asked)}.{number}") for number in range(len(leaves))]
        shapes = [None if one is None else (one.shape, one.dtype) for one in kept]
        if shapes != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            return None
        return jax.tree_util.tree_unflatten(structure, kept)

    def write(self, asked: messages.RoundConfiguration, kept: Any) -> None:
        """Keep something for a run, in place of all that was kept before; when this returns, it is on disk. Raises
        ClientError where it cannot be written."""
        leaves = jax.tree_util.tree_leaves(kept)
        if not leaves:
            return
        named = {f"{_run(asked)}.{number}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
        self._content = save(named)
        if self._path is None:
            return
        try:
            replace_whole(self._path, self._content, private=True)
        except OSError as error:
            raise ClientError(
                f"{self._path}: cannot be written ({error}), so that this device does not take part; make room, or "
                "permit writing there"
            ) from error


def _run(asked: messages.RoundConfiguration) -> str:
    """Name a run, by all that its rounds have in common."""
    common = messages.RoundConfiguration(
        population=asked.population, seed=asked.seed, program=asked.program, vocabulary=asked.vocabulary
    )
    return hashlib.sha256(common.SerializeToString(deterministic=True)).hexdigest()
