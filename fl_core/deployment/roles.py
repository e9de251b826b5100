"""Puts a deployment's server together, and runs it until its rounds are over or it is asked to stop."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlm.fl_core.cohorts import CohortSampler
from fedlm.fl_core.deployment.event_log import event
from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics, HandlersWithMetrics
from fedlm.fl_core.deployment.operations.overview import Overview
from fedlm.fl_core.deployment.protocol.artifacts import ServedArtifact
from fedlm.fl_core.deployment.protocol.interface import Handlers
from fedlm.fl_core.deployment.protocol.training_program import write_training_program
from fedlm.fl_core.deployment.protocol.update_bytes import download_bytes, upload_bytes
from fedlm.fl_core.deployment.server.client_handlers import ClientHandlers, Offer
from fedlm.fl_core.deployment.server.client_registry import ClientRegistry
from fedlm.fl_core.deployment.server.freed_memory import return_freed_memory
from fedlm.fl_core.deployment.server.network_runner import MakeSum, NetworkCohortRunner
from fedlm.fl_core.deployment.server.pacing import PaceSteering
from fedlm.fl_core.deployment.server.rate_limits import RateLimiter, RateLimits
from fedlm.fl_core.deployment.server.reports.receiving import Receiver
from fedlm.fl_core.deployment.server.reports.robust_sums import RobustSum
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.deployment.server.reports.upload_buffers import UploadBuffers
from fedlm.fl_core.deployment.server.round_attempt import RoundRules
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.server.training import DeployedTraining, Observer, Score
from fedlm.fl_core.deployment.state.state import State
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, SqlState, sqlite_url
from fedlm.fl_core.deployment.transport.listeners import Listener
from fedlm.fl_core.round_loop import RoundPlan
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.models.base import Model, Params

TRANSFERS_FOLDER = "transfers"
"""In the folder of a run: what clients download, and uploads that memory has no room for."""

_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
      deployment: the settings.
      model: with the vocabulary's size.
      vocabulary: the tokenizer's JSON.
      fingerprint: of the vocabulary.
      score: see `fedlm.fl_core.deployment.server.training.Score`.
      sampler: names the cohorts, for runs that repeat a simulation.
    """

    deployment: Deployment
    model: Model
    vocabulary: bytes
    fingerprint: str
    score: Score | None = None
    sampler: CohortSampler | None = None


Listen = Callable[[Handlers], Listener]
"""Makes what carries calls to handlers."""

Show = Callable[[Overview | None, CallMetrics], Listener]
"""Makes what shows operators how the server stands: without an overview the metrics alone."""


async def serve(
    task: Task,
    out: Path,
    listen: Listen,
    observe: Observer,
    database: str | None = None,
    linger: float = 0.0,
    show: Show | None = None,
) -> bool:
    """Run a deployment's server.

    Args:
      task: what is trained.
      out: folder of the run; made where absent.
      listen: makes the transport.
      observe: see `fedlm.fl_core.deployment.server.training.Observer`; called in another thread.
      database: URL of the state; SQLite in the folder where None.
      linger: seconds for which clients are still told that the run is over.
      show: makes the operators' listener; there is none where None.

    Returns:
      Whether the run is over; else it was asked to stop.

    Raises:
      UserError: settings, folder and state do not belong together, or the address is taken.
    """
    return_freed_memory()
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(RunFolder(out))
        state = SqlState(database or sqlite_url(out / DATABASE_FILE))
        opened.callback(state.close)
        training = DeployedTraining(
            task.deployment, task.model, task.fingerprint, folder, state, task.score, task.sampler
        )
        coordinator = make_client_handlers(task, training, state, out)
        async with contextlib.AsyncExitStack() as listening:
            handlers: Handlers = coordinator
            if show is not None:
                metrics = CallMetrics()
                handlers = HandlersWithMetrics(coordinator, metrics)
                overview = Overview(task.deployment, coordinator, training, state)
                await start_listening(listening, show(overview, metrics), "operators")
            await start_listening(listening, listen(handlers), "clients")
            return await _run(task.deployment, coordinator, training, out, observe, linger)


async def start_listening(listening: contextlib.AsyncExitStack, listener: Listener, whom: str) -> None:
    """Listen for as long as a context lasts.

    Args:
      listening: the context.
      listener: begins now.
      whom: it listens to, for the log.

    Raises:
      ConfigurationError: the address cannot be listened on.
    """
    await listener.start()
    listening.push_async_callback(listener.stop, _GRACE_SECONDS)
    event("listening", to=whom, port=listener.port)


def make_client_handlers(task: Task, training: DeployedTraining, state: State, out: Path) -> ClientHandlers:
    """Put together what answers clients; call it in the event loop.

    Args:
      task: what is trained.
      training: of it.
      state: that the training agreed with.
      out: folder of the run.

    Returns:
      The coordinator.
    """
    return ClientHandlers(**desk_of(task, training.params, state, out))


def rules_of(deployment: Deployment) -> RoundRules:
    """Collect the rules of rounds.

    Args:
      deployment: the settings.

    Returns:
      The rules.
    """
    return RoundRules(
        deployment.cohort_size,
        deployment.fewest_reports,
        deployment.over_selection,
        deployment.selection_seconds,
        deployment.reporting_seconds,
    )


def desk_of(task: Task, like: Params, state: State, out: Path) -> dict[str, Any]:
    """Make the parts of what answers clients.

    Args:
      task: what is trained.
      like: parameters of the model, or their shapes.
      state: of the run.
      out: folder for uploads and downloads.

    Returns:
      Arguments of `ClientHandlers`.
    """
    deployment, rules = task.deployment, rules_of(task.deployment)
    transfers = out / TRANSFERS_FOLDER
    transfers.mkdir(exist_ok=True)
    round_bytes = download_bytes(like) + upload_bytes(deployment.compressor(), like) + len(task.vocabulary)
    return {
        "state": state,
        "registry": ClientRegistry(state, deployment.participation, deployment.saved_every),
        "rules": rules,
        "offer": Offer(
            write_training_program(deployment.model, task.model, deployment),
            ServedArtifact([task.vocabulary], "tokenizer", deployment.chunk_bytes, transfers),
        ),
        "receiver": Receiver(
            like,
            deployment.compressor(),
            deployment.local_training(),
            deployment.length,
            UploadBuffers(download_bytes(like), transfers),
        ),
        "pacing": PaceSteering(rules.selected, deployment.check_in_seconds),
        "limiter": RateLimiter(RateLimits.for_rounds(round_bytes, deployment.check_in_seconds)),
    }


async def _run(
    deployment: Deployment,
    coordinator: ClientHandlers,
    training: DeployedTraining,
    out: Path,
    observe: Observer,
    linger: float,
) -> bool:
    loop = asyncio.get_running_loop()
    runner = NetworkCohortRunner(
        coordinator,
        loop,
        sums_of(deployment, out / TRANSFERS_FOLDER),
        deployment.download_encoding,
        deployment.chunk_bytes,
        out / TRANSFERS_FOLDER,
    )
    with draining_signals(coordinator.drain):
        saving = asyncio.create_task(coordinator.save_check_ins())
        try:
            over = await asyncio.to_thread(training.run, runner, observe, lambda: coordinator.draining)
        finally:
            saving.cancel()
        event("run_over" if over else "drained")
        if over and not coordinator.draining:
            coordinator.finish()
            await asyncio.sleep(linger)
    return over


def sums_of(deployment: Deployment, folder: Path) -> MakeSum:
    """Choose how the reports of a round become one.

    Args:
      deployment: the settings.
      folder: for what must wait until a round's end.

    Returns:
      See `MakeSum`.
    """
    compressor, rules, rule = deployment.compressor(), deployment.aggregation_rules(), deployment.robust_rule()

    def make(params: Params, plan: RoundPlan, clip_norm: float | None) -> StreamingSum:
        if rule.name == "mean":
            return StreamingSum(params, compressor, rules, clip_norm, plan.upload_key())
        most = len(plan.clients) or deployment.cohort_size
        return RobustSum(params, compressor, rules, clip_norm, plan.upload_key(), rule, folder, most)

    return make


@contextlib.contextmanager
def draining_signals(drain: Callable[[], None]) -> Iterator[None]:
    """Drain when asked to end; where signals cannot be caught, as in another than the main thread, do without.

    Args:
      drain: called, in the event loop, when the process is first asked to end.

    Yields:
      Nothing.
    """
    loop, caught, asked = asyncio.get_running_loop(), [], False

    def ask(which: signal.Signals) -> None:
        nonlocal asked
        if asked:
            # Asked twice: end now, as a crash would; nothing that was released is lost.
            signal.signal(which, signal.SIG_DFL)
            signal.raise_signal(which)
        asked = True
        event("draining", signal=which.name)
        drain()

    for which in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(which, ask, which)
            caught.append(which)
    try:
        yield
    finally:
        for which in caught:
            loop.remove_signal_handler(which)
