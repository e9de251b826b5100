"""What the process that runs plans does: it has limits, one connection, and nothing of the device but batches.

`confinement.py` is its beginning. `confined.py` starts it, sends it a plan, the model and batches, and waits for each
answer for so long.
"""

import contextlib
import importlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedlm_client.errors import PlanError
from fedlm_client.frames import receive_frame, send_frame
from fedlm_client.manifest import SUMS, Argument, Manifest, Program, read_manifest

_LONGEST = 1 << 40  # the client sends these, and is believed
_RUNTIMES = {"jax": "fedlm_client.jax_runtime", "iree": "fedlm_client.iree_runtime"}
Run = Callable[[Sequence[Any]], list[Any]]


class Training:
    """A loaded plan, and where one round of it stands."""

    def __init__(self, manifest: Manifest, step: Run, finish: Run):
        self._manifest, self._step, self._finish = manifest, step, finish
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
        self._have |= self._call(self._manifest.step, self._step, given)
        # A step that was asked for is over when it is answered, so that its time is bounded.
        np.asarray(self._have["sums"][0])

    def finish(self, given: dict[str, list[Any]]) -> list[bytes]:
        """Make sums, whether all is finite, and the bytes of an upload, with the round's seed and numbers."""
        made = self._call(self._manifest.finish, self._finish, given)
        return [np.asarray(one).tobytes() for one in (*self._have["sums"], made["finite"][0], *made["upload"])]

    def _call(self, program: Program, run: Run, given: dict[str, list[Any]]) -> dict[str, list[Any]]:
        have = self._have | given
        made: dict[str, dict[int, Any]] = {}
        results = run([have[one.role][one.index] for one in program.inputs])
        for one, result in zip(program.outputs, results, strict=True):
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
                elif head["do"] == "compile":
                    modules = _compile(head, body)
                    answer = {"sizes": [len(one) for one in modules]}, modules
                elif head["do"] == "describe":
                    answer = {"stablehlo": importlib.import_module(_RUNTIMES["jax"]).newest_stablehlo()}, []
                else:
                    assert training is not None
                    answer = {}, _train(training, head, body)
            except PlanError as error:
                answer = {"error": str(error)}, []
            except MemoryError:
                answer = {"error": "the plan's program needs more memory than it may have"}, []
            except Exception as error:
                # Libraries raise what they like, and what they say may be long.
                answer = {"error": f"the plan's program does not run ({type(error).__name__}: {str(error)[:300]})"}, []
            send_frame(connection, *answer)


def _train(training: Training, head: dict[str, Any], body: bytearray) -> list[bytes]:
    if head["do"] == "begin":
        training.begin(body)
    elif head["do"] == "step":
        rows = _arrays(training, body)
        training.step(rows | {"learning_rate": [np.float32(head["learning_rate"])]})
    else:
        names = ("seed", "round_number", "client_index")
        return training.finish({name: [np.uint32(head[name])] for name in names})
    return []


def _arrays(training: Training, body: bytearray) -> dict[str, list[Any]]:
    """Read a step's tokens, weight and random words, laid end to end."""
    found: dict[str, list[Any]] = {}
    batches, place = training._manifest.batches, 0
    for one in (
        Argument("tokens", 0, (batches.batch_size, batches.length + 1), "int32"),
        Argument("weight", 0, (batches.batch_size,), "float32"),
        Argument("random", 0, (batches.batch_size, 2), "uint32"),
    ):
        found[one.role] = [np.frombuffer(body, one.dtype, one.size // 4, place).reshape(one.shape)]
        place += one.size
    return found


def _parts(head: dict[str, Any], body: bytearray) -> list[bytes]:
    found, place = [], 0
    for size in head["sizes"]:
        found.append(bytes(body[place : place + size]))
        place += size
    return found


def _load(head: dict[str, Any], body: bytearray) -> Training:
    described, *contents = _parts(head, body)
    manifest = read_manifest(described)
    runtime = importlib.import_module(_RUNTIMES[head["runtime"]])
    programs = (manifest.step, manifest.finish)
    if head["runtime"] == "jax":
        for content, program in zip(contents, programs, strict=True):
            runtime.check(content, program)
    runs = [runtime.load(content, program) for content, program in zip(contents, programs, strict=True)]
    return Training(manifest, *runs)


def _compile(head: dict[str, Any], body: bytearray) -> list[bytes]:
    from fedlm_client import iree_compiler

    described, *contents = _parts(head, body)
    manifest = read_manifest(described)
    for content, program in zip(contents, (manifest.step, manifest.finish), strict=True):
        iree_compiler.check(content, program)
    return [iree_compiler.compile_program(content, tuple(head["target"])) for content in contents]
