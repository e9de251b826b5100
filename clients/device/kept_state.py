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
from fedlm.fedlm_client.files import keep_own
from fedlm.fedlm_client.own_participation import request_of


class KeptState:
    """What was kept for the run that the device took part in last.

    What it was before the last round stays too, so that the same request again, as after an abandoned attempt, gets the
    same update: else a server could have any number of updates of a text by asking for one round.
    """

    def __init__(self, path: Path | None = None):
        """Name the file, which need not exist yet; what is kept lasts as long as the process where None."""
        self._path = path
        self._content: bytes | None = None

    def read(self, asked: messages.RoundConfiguration, like: Any) -> Any:
        """Read what training begins with, of the structure of shapes; None where nothing was kept for the run.
        Raises ClientError where the file cannot be read."""
        leaves, structure = jax.tree_util.tree_flatten(like)
        found = self._found(asked) if leaves else {}
        kept = [found.get(str(number)) for number in range(len(leaves))]
        shapes = [None if one is None else (one.shape, one.dtype) for one in kept]
        if shapes != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            return None
        return jax.tree_util.tree_unflatten(structure, kept)

    def name(self, asked: messages.RoundConfiguration) -> str | None:
        """Name what training begins with, by its content; None where nothing was kept for the run. Raises ClientError
        where the file cannot be read."""
        found = self._found(asked)
        return hashlib.sha256(save(found)).hexdigest() if found else None

    def write(self, asked: messages.RoundConfiguration, kept: Any) -> None:
        """Keep something for a run, in place of all that was kept for others; when this returns, it is on disk. Raises
        ClientError where it cannot be written."""
        leaves = jax.tree_util.tree_leaves(kept)
        if not leaves:
            return
        run, last = _run(asked), _of_request(asked)
        named = {f"{last}.{number}": value for number, value in self._found(asked).items()} | {last: np.zeros(1)}
        named |= {f"{run}.{number}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
        self._content = save(named)
        if self._path is None:
            return
        keep_own(self._path, self._content)

    def _found(self, asked: messages.RoundConfiguration) -> dict[str, np.ndarray]:
        """Read what training begins with, by the numbers of its arrays."""
        try:
            if self._path is not None:
                # A file that its owner removed is not written again from memory.
                self._content = self._path.read_bytes() if self._path.exists() else None
            found = {} if self._content is None else load(self._content)
            if not all(np.isfinite(one).all() for one in found.values()):
                raise ValueError("it has numbers that are not finite")
        except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
            raise ClientError(
                f"{self._path}: not the layers that this device keeps ({error}); put the file back as it was, or "
                "remove it to begin with those of a new person"
            ) from error
        last = _of_request(asked)
        begins = f"{last if last in found else _run(asked)}."
        names = {name: name.removeprefix(begins) for name in found if name.startswith(begins)}
        return {number: found[name] for name, number in names.items() if number.isdecimal()}


def _run(asked: messages.RoundConfiguration) -> str:
    """Name a run, by all that its rounds have in common."""
    common = messages.RoundConfiguration(
        run=asked.run,
        population=asked.population,
        seed=asked.seed,
        program=asked.program,
        vocabulary=asked.vocabulary,
    )
    return hashlib.sha256(common.SerializeToString(deterministic=True)).hexdigest()


def _of_request(asked: messages.RoundConfiguration) -> str:
    """Name what a run's last round began with, if it was asked for so."""
    return f"{_run(asked)}.{hashlib.sha256(request_of(asked)).hexdigest()}"
