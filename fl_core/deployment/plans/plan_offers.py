"""The plan that the clients of a run are offered that have no models, made when the first of them asks."""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.plans.plan import Plan
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.security.plan_keys import PlanSigner
from fedlm.fl_core.errors import DiskError, UserError

PLAN_BYTES = 1 << 23
"""Bytes of a plan at most, for the shares that clients have of what a server sends."""

_AGAIN_SECONDS = 30.0


class OfferedPlan(NamedTuple):
    """A plan as it is served."""

    plan: Plan
    message: messages.Plan
    artifacts: tuple[ServedArtifact, ...]


class PlanOffer:
    """The plan of a run. Use it in one event loop."""

    def __init__(self, make: Callable[[], Plan], signer: PlanSigner, chunk_bytes: int, folder: Path):
        """Prepare to offer what `make` makes, in chunks, from a folder of nameless files."""
        self._make, self._signer, self._chunk_bytes, self._folder = make, signer, chunk_bytes, folder
        self._made: asyncio.Task[OfferedPlan] | None = None
        self._failed = -math.inf  # when making it last failed

    def offer(self) -> OfferedPlan | str | None:
        """Return the plan; why there is none, in a few words; or None where it is being made."""
        if self._made is None:
            # Clients ask as often as they like, and each try costs what making a plan does.
            if time.monotonic() - self._failed < _AGAIN_SECONDS:
                return None
            self._made = asyncio.create_task(asyncio.to_thread(self._serve))
        if not self._made.done():
            return None
        error = self._made.exception()
        if error is None:
            return self._made.result()
        if isinstance(error, UserError) and not isinstance(error, DiskError):
            return f"the server can make no plan of this run: {error}"
        # There may be room again, or whatever it was may be over; clients that are turned away do not come back.
        if isinstance(error, DiskError):
            warn("plan_not_written", why=str(error))
        else:
            warn("plan_not_made", why=f"{type(error).__name__}: {error}")
        self._failed, self._made = time.monotonic(), None
        return None

    def find(self, digest: bytes) -> ServedArtifact | None:
        """Find a part of the plan that is offered."""
        if self._made is None or not self._made.done() or self._made.exception() is not None:
            return None
        return next((one for one in self._made.result().artifacts if one.description.digest == digest), None)

    def _serve(self) -> OfferedPlan:
        plan = self._make()
        manifest, model = (
            ServedArtifact([content], encoding, self._chunk_bytes, self._folder)
            for content, encoding in ((plan.manifest, "plan"), (plan.model, "litert"))
        )
        signature = self._signer.sign(plan.manifest)
        message = messages.Plan(manifest=manifest.description, model=model.description, signature=signature)
        return OfferedPlan(plan, message, (manifest, model))
