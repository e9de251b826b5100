"""Starts the process that runs plans (`worker.py`), and ends it where it asks for more than its time or memory."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..errors import PlanError
from .frames import FrameError, receive_frame, send_frame
from .manifest import SUMS, Manifest

_PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")


class Confined:
    """A process with limits; a context manager that ends it."""

    def __init__(self, memory: int):
        """Start it, with as many bytes of memory."""
        ours, theirs = socket.socketpair()
        self._memory, self._connection = memory, ours
        environment = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
        package = __package__ or ""
        environment["PYTHONPATH"] = str(Path(__file__).parents[1 + package.count(".")])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{package}.confinement", str(theirs.fileno()), str(memory)],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def ask(
        self, head: dict[str, Any], parts: Sequence[bytes | memoryview], seconds: float, longest: int = 0
    ) -> tuple[dict[str, Any], bytearray]:
        """Ask for something, and wait for the answer.

        Args:
          head: what for.
          parts: the bytes that go with it, laid end to end.
          seconds: how long at most.
          longest: bytes of the answer at most.

        Raises:
          PlanError: it could not be done, or not within time and memory; the process is gone then, or its answer says
            why.
        """
        deadline = time.monotonic() + seconds
        self._connection.settimeout(seconds)
        try:
            send_frame(self._connection, head, parts)
            answer, body = receive_frame(self._connection, longest, deadline)
        except TimeoutError as error:
            self.close()
            raise PlanError(f"a call of the plan's model took more than {seconds:g} seconds, and was ended") from error
        except (EOFError, ConnectionError, BrokenPipeError) as error:
            self.close()
            raise PlanError(
                f"the process that ran the plan ended (status {self._process.returncode}); it may have needed more "
                f"memory than its {self._memory:,} bytes"
            ) from error
        except FrameError as error:
            self.close()
            raise PlanError(f"the process that ran the plan gave an answer to no question ({error})") from error
        if "error" in answer:
            said = "".join(one for one in str(answer["error"])[:500] if one.isprintable())
            raise PlanError(said)
        return answer, body


class LoadedPlan:
    """A plan that is ready to train, in a process of its own; a context manager."""

    def __init__(self, manifest: Manifest, described: bytes, model: bytes):
        """Load a plan whose limits the owner allows: its manifest, as it was read and as bytes, and its model."""
        self._manifest = manifest
        self._process = Confined(manifest.memory_bytes)
        try:
            head = {"do": "load", "manifest_bytes": len(described)}
            self._process.ask(head, [described, model], manifest.load_seconds)
        except BaseException:
            self._process.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End its process."""
        self._process.close()

    def begin(self, values: np.ndarray) -> None:
        """Begin a round with the server's tensors, float32 [values]."""
        self._ask({"do": "begin"}, [_bytes(values, "<f4")])

    def step(self, tokens: np.ndarray, weight: np.ndarray, random: np.ndarray, learning_rate: float) -> None:
        """Take a local step; see `batches.py` for its arguments."""
        parts = [_bytes(tokens, "<i4"), _bytes(weight, "<f4"), _bytes(random.view(np.int32), "<i4")]
        self._ask({"do": "step", "learning_rate": learning_rate}, parts)

    def finish(self, seed: int, number: int, client: int) -> tuple[list[float], bool, bytes]:
        """End a round of a seed and number for a client's index.

        Returns:
          Sums over the steps (loss, tokens, norms of gradients), whether all numbers of the update are finite, and what
          of an upload lies between header and checksum.

        Raises:
          PlanError: that is not as long as the manifest says, or sums are not what sums can be.
        """
        pieces = sum(one.size for one in self._manifest.finish.outputs if one.role == "upload")
        expected = 4 * SUMS + 4 + pieces
        head = {"do": "finish", "seed": seed, "round_number": number, "client_index": client}
        _, body = self._ask(head, [], expected)
        if len(body) != expected:
            raise PlanError(f"the plan's model made {len(body)} bytes, but its manifest says {expected}")
        sums = [float(one) for one in np.frombuffer(body, "<f4", SUMS)]
        finite = bool(np.frombuffer(body, "<i4", 1, 4 * SUMS)[0]) and bool(np.isfinite(sums).all())
        if finite and min(sums) < 0:
            raise PlanError("the plan's model made sums below 0 of losses, tokens or norms")
        return sums, finite, bytes(body[4 * SUMS + 4 :])

    def _ask(self, head: dict[str, Any], parts: Sequence[bytes | memoryview], longest: int = 0) -> Any:
        return self._process.ask(head, parts, self._manifest.call_seconds, longest)


def _bytes(array: np.ndarray, kind: str) -> memoryview:
    return np.ascontiguousarray(array, kind).reshape(-1).view(np.uint8).data
