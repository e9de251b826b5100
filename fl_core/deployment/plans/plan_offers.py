"""The plans that the clients of a run are offered, made for the runtimes that they announce when they check in."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.plans.plan import Plan
from fedlm.fl_core.deployment.plans.plan_modules import PURPOSE, ModuleFiles, ModuleFolder, statement_on
from fedlm.fl_core.deployment.plans.programs import versions
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.security.plan_keys import PlanSigner
from fedlm.fl_core.errors import DataError, DiskError, UserError

PLAN_BYTES = 1 << 22
"""Bytes of a plan at most, for the shares that clients have of what a server sends."""

_SETTLED_SECONDS = 2.0
_AGAIN_SECONDS = 30.0
_VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}")


class OfferedPlan(NamedTuple):
    """A plan as it is served."""

    plan: Plan
    message: messages.Plan
    artifacts: tuple[ServedArtifact, ...]


class _Wanted(NamedTuple):
    """What plans and modules differ by."""

    stablehlo: str
    runtime: str = ""  # of modules; no modules where empty
    target: str = ""  # the same
    version: str = ""  # of the runtime, the same
    files: ModuleFiles | None = None  # the modules, as they were


class PlanOffers:
    """Plans by their version of StableHLO, of which there are few, and modules of these. Use it in one event
    loop."""

    def __init__(
        self,
        make: Callable[[str], Plan],
        signer: PlanSigner,
        chunk_bytes: int,
        folder: Path,
        modules: ModuleFolder | None = None,
    ):
        """Prepare to offer what `make` makes for a version of StableHLO, in chunks, from a folder of nameless files.

        Modules are offered to clients that name a target, beside the plan, as soon as they are in their folder.
        """
        self._make, self._signer, self._chunk_bytes, self._folder = make, signer, chunk_bytes, folder
        self._modules = modules
        self._made: dict[_Wanted, asyncio.Task[OfferedPlan]] = {}
        self._failed: dict[str, float] = {}  # by version of StableHLO, when making it last failed

    def offer(self, runtimes: Sequence[messages.Runtime]) -> OfferedPlan | str | None:
        """Find the plan for a client.

        Args:
          runtimes: what it announces, of which nothing is trusted; a plan is made for the first that there is one for.

        Returns:
          The plan; why there is none, in a few words; or None where it is being made.
        """
        read = [(one, version) for one in runtimes if (version := _readable(one)) is not None]
        if not read:
            oldest = versions()[-1]
            return f"none of the client's runtimes reads StableHLO {oldest}, the oldest that the server writes"
        runtime, version = read[0]
        offered = self._offered(_Wanted(version), lambda: self._serve(version))
        if not isinstance(offered, OfferedPlan) or not runtime.target or self._modules is None:
            return offered
        # Only what there are files of is kept, so that clients cannot make this grow.
        asked = runtime.name, runtime.target, runtime.version
        files = self._modules.find(offered.plan, *asked)
        if files is None:
            return offered
        if 0 <= files.age < _SETTLED_SECONDS:
            return None  # they may be half written
        wanted = _Wanted(version, *asked, files)
        for other in [one for one in self._made if one[:-1] == wanted[:-1] and one.files not in (None, files)]:
            del self._made[other]
        return self._offered(wanted, lambda: self._with_modules(offered, wanted, files))

    def _offered(self, wanted: _Wanted, make: Callable[[], OfferedPlan]) -> OfferedPlan | str | None:
        if wanted not in self._made:
            # Clients ask as often as they like, and each try costs what making a plan does.
            if time.monotonic() - self._failed.get(wanted.stablehlo, -math.inf) < _AGAIN_SECONDS:
                return None
            self._made[wanted] = asyncio.create_task(asyncio.to_thread(make))
        task = self._made[wanted]
        if not task.done():
            return None
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, UserError) and not isinstance(error, DiskError):
            return f"the server can make no plan of this run: {error}"
        # There may be room again, or whatever it was may be over; clients that are turned away do not come back.
        if isinstance(error, DiskError):
            warn("plan_not_written", why=str(error))
        else:
            warn("plan_not_made", why=f"{type(error).__name__}: {error}")
        self._failed[wanted.stablehlo] = time.monotonic()
        del self._made[wanted]
        return None

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
        manifest = self._artifact(plan.manifest, "plan")
        step, finish = (self._artifact(content, "stablehlo") for content in (plan.step, plan.finish))
        message = messages.Plan(
            manifest=manifest.description,
            step=step.description,
            finish=finish.description,
            signature=self._signer.sign(plan.manifest),
        )
        return OfferedPlan(plan, message, (manifest, step, finish))

    def _with_modules(self, offered: OfferedPlan, wanted: _Wanted, files: ModuleFiles) -> OfferedPlan:
        try:
            contents = files.read(offered.plan, wanted.runtime, self._signer)
        except (OSError, DataError) as error:
            warn("modules_unreadable", target=wanted.target, why=str(error))
            return offered
        step, finish = (self._artifact(content, wanted.runtime) for content in contents)
        statement = statement_on(offered.plan, wanted.runtime, wanted.target, wanted.version, *contents)
        message = messages.Plan()
        message.CopyFrom(offered.message)
        message.modules.CopyFrom(
            messages.PlanModules(
                statement=statement,
                signature=self._signer.sign(statement, PURPOSE),
                step=step.description,
                finish=finish.description,
            )
        )
        return OfferedPlan(offered.plan, message, (step, finish))

    def _artifact(self, content: bytes, encoding: str) -> ServedArtifact:
        return ServedArtifact([content], encoding, self._chunk_bytes, self._folder)


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
