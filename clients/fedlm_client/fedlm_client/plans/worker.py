"""What the process that runs plans does: it has limits, one connection, and nothing of the device but batches.

`confinement.py` is its beginning. `confined.py` starts it, sends it a plan, the model and batches, and waits for each
answer for so long.
"""

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import PlanError
from .frames import receive_frame, send_frame
from .manifest import SUMS, Argument, Manifest, Signature, read_manifest

_LONGEST = 1 << 40  # the client sends these, and is believed
Run = Callable[[Sequence[Any]], list[Any]]


class Training:
    """A loaded plan, and where one round of it stands."""

    def __init__(self, manifest: Manifest, train: Run, finish: Run):
        self._manifest, self._train, self._finish = manifest, train, finish
        self._have: dict[str, list[Any]] = {}

    def begin(self, values: bytearray) -> None:
        """Take the server's tensors, float32 end to end."""
        flat, place, download = np.frombuffer(values, "<f4"), 0, []
        for one in self._manifest.download:
            size = int(np.prod(one.shape, dtype=np.int64))
            download.append(flat[place : place + size].reshape(one.shape))
            place += size
        state = [
            np.zeros(one.shape, one.dtype) if one.begins is None else download[one.begins]
            for one in self._manifest.state
        ]
        self._have = {"download": download, "state": state, "sums": [np.float32(0)] * SUMS}

    def step(self, given: dict[str, list[Any]]) -> None:
        """Take a local step with tokens, weight, learning rate and random words."""
        self._have |= self._call(self._manifest.train, self._train, given)

    def finish(self, given: dict[str, list[Any]]) -> list[bytes]:
        """Make sums, whether all is finite, and the bytes of an upload, with the round's seed and numbers."""
        made = self._call(self._manifest.finish, self._finish, given)
        return [np.asarray(one).tobytes() for one in (*self._have["sums"], made["finite"][0], *made["upload"])]

    def _call(self, signature: Signature, run: Run, given: dict[str, list[Any]]) -> dict[str, list[Any]]:
        have = self._have | given
        made: dict[str, dict[int, Any]] = {}
        results = run([have[one.role][one.index] for one in signature.inputs])
        for one, result in zip(signature.outputs, results, strict=True):
            made.setdefault(one.role, {})[one.index] = result
        return {role: [found[place] for place in range(len(found))] for role, found in made.items()}


def serve(connection: socket.socket) -> None:
    """Do what is asked for, one thing after another, until the client hangs up."""
    training: Training | None = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            head, body = receive_frame(connection, _LONGEST)
            answer: tuple[dict[str, Any], list[bytes]] = {}, []
            try:
                if head["do"] == "load":
                    training = _load(head, body)
                else:
                    assert training is not None
                    answer = {}, _train(training, head, body)
            except PlanError as error:
                answer = {"error": str(error)}, []
            except MemoryError:
                answer = {"error": "the plan's model needs more memory than it may have"}, []
            except Exception as error:
                # Libraries raise what they like, and what they say may be long.
                answer = {"error": f"the plan's model does not run ({type(error).__name__}: {str(error)[:300]})"}, []
            send_frame(connection, *answer)


def _train(training: Training, head: dict[str, Any], body: bytearray) -> list[bytes]:
    if head["do"] == "begin":
        training.begin(body)
    elif head["do"] == "step":
        rows = _arrays(training, body)
        training.step(rows | {"learning_rate": [np.float32(head["learning_rate"])]})
    else:
        names = ("seed", "round_number", "client_index")
        return training.finish({name: [np.uint32(head[name]).view(np.int32)] for name in names})
    return []


def _arrays(training: Training, body: bytearray) -> dict[str, list[Any]]:
    """Read a step's tokens, weight and random words, laid end to end."""
    found: dict[str, list[Any]] = {}
    batches, place = training._manifest.batches, 0
    for one in (
        Argument("", "tokens", 0, (batches.batch_size, batches.length + 1), "int32"),
        Argument("", "weight", 0, (batches.batch_size,), "float32"),
        Argument("", "random", 0, (batches.batch_size, 2), "int32"),
    ):
        found[one.role] = [np.frombuffer(body, one.dtype, one.size // 4, place).reshape(one.shape)]
        place += one.size
    return found


def _load(head: dict[str, Any], body: bytearray) -> Training:
    # What reads a model is imported where there is one, so that lack of memory is said.
    from .litert import load

    described, model = body[: head["manifest_bytes"]], body[head["manifest_bytes"] :]
    manifest = read_manifest(bytes(described))
    return Training(manifest, *load(bytes(model), manifest))
