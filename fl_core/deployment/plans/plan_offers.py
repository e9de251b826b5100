"""The plans that the clients of a run are offered, made for the runtimes that they announce when they check in."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.deployment.plans.plan import Plan
from fedlm.fl_core.deployment.plans.programs import versions
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.security.plan_keys import PlanSigner
from fedlm.fl_core.errors import UserError

PLAN_BYTES = 1 << 22
"""Bytes of a plan at most, for the shares that clients have of what a server sends."""

_VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}")


class OfferedPlan(NamedTuple):
    """A plan as it is served."""

    message: messages.Plan
    artifacts: tuple[ServedArtifact, ...]


class PlanOffers:
    """Plans by their version of StableHLO, of which there are few. Use it in one event loop."""

    def __init__(self, make: Callable[[str], Plan], signer: PlanSigner, chunk_bytes: int, folder: Path):
        """Prepare to offer what `make` makes for a version of StableHLO, in chunks, from a folder of nameless files."""
        self._make, self._signer, self._chunk_bytes, self._folder = make, signer, chunk_bytes, folder
        self._made: dict[str, asyncio.Task[OfferedPlan]] = {}

    def offer(self, runtimes: Sequence[messages.Runtime]) -> OfferedPlan | str | None:
        """Find the plan for a client.

        Args:
          runtimes: what it announces, of which nothing is trusted; a plan is made for the first that there is one for.

        Returns:
          The plan; why there is none, in a few words; or None where it is being made.
        """
        wanted = [version for version in map(_readable, runtimes) if version is not None]
        if not wanted:
            oldest = versions()[-1]
            return f"none of the client's runtimes reads StableHLO {oldest}, the oldest that the server writes"
        version = wanted[0]
        if version not in self._made:
            self._made[version] = asyncio.create_task(asyncio.to_thread(self._serve, version))
        task = self._made[version]
        if not task.done():
            return None
        error = task.exception()
        if isinstance(error, UserError):
            return f"the server can make no plan of this run: {error}"
        return task.result()

    def find(self, digest: bytes) -> ServedArtifact | None:
        """Find a part of a plan that is offered."""
        for task in self._made.values():
            if task.done() and task.exception() is None:
                for artifact in task.result().artifacts:
                    if artifact.description.digest == digest:
                        return artifact
        return None

    def _serve(self, version: str) -> OfferedPlan:
        plan = self._make(version)
        contents = {"plan": plan.manifest, "step": plan.step, "finish": plan.finish}
        artifacts = [
            ServedArtifact([content], "plan" if name == "plan" else "stablehlo", self._chunk_bytes, self._folder)
            for name, content in contents.items()
        ]
        manifest, step, finish = (one.description for one in artifacts)
        signature = self._signer.sign(plan.manifest)
        return OfferedPlan(
            messages.Plan(manifest=manifest, step=step, finish=finish, signature=signature), tuple(artifacts)
        )


def _readable(runtime: messages.Runtime) -> str | None:
    """Choose the newest version of StableHLO that a runtime reads; None where it reads none that is written."""
    written = versions()
    if not runtime.stablehlo:
        return written[-1]
    if not _VERSION.fullmatch(runtime.stablehlo):
        return None
    return next((one for one in written if _numbers(one) <= _numbers(runtime.stablehlo)), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
