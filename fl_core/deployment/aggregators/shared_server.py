"""A deployment's server in several processes: one coordinator, and aggregators that clients talk to.

They share a database and nothing else; see `fedlm.fl_core.deployment.aggregators.shared_rounds`.
"""

import asyncio
import contextlib
import hashlib
import json
from pathlib import Path

import jax
from google.protobuf.json_format import MessageToDict

from fedlm.fl_core.deployment.aggregators.aggregator import Aggregator
from fedlm.fl_core.deployment.aggregators.shared_progress import SharedProgress
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.aggregators.shared_runner import SharedCohortRunner
from fedlm.fl_core.deployment.event_log import event
from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics, HandlersWithMetrics
from fedlm.fl_core.deployment.operations.overview import Overview
from fedlm.fl_core.deployment.protocol.interface import PROTOCOL, Handlers
from fedlm.fl_core.deployment.protocol.training_program import write_training_program
from fedlm.fl_core.deployment.roles import (
    TRANSFERS_FOLDER,
    Listen,
    Show,
    Task,
    desk_of,
    draining_signals,
    rules_of,
    start_listening,
)
from fedlm.fl_core.deployment.server.freed_memory import return_freed_memory
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum
from fedlm.fl_core.deployment.server.training import DeployedTraining, Observer
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import SqlState
from fedlm.fl_core.round_loop import RoundPlan
from fedlm.fl_core.runs.run_folder import RunFolder

_LOOK_SECONDS = 0.1


async def coordinate(task: Task, out: Path, observe: Observer, database: str, show: Show | None = None) -> bool:
    """Run the coordinator: rounds, noise, ledger and checkpoints. No client talks to it, but operators may.

    Args:
      task: what is trained.
      out: folder of the run; made where absent.
      observe: see `fedlm.fl_core.deployment.server.training.Observer`; called in another thread.
      database: URL of the state.
      show: makes the operators' listener; there is none where None.

    Returns:
      Whether the run is over; else it was asked to stop.

    Raises:
      UserError: settings, folder and state do not belong together.
    """
    return_freed_memory()
    draining = asyncio.Event()
    async with contextlib.AsyncExitStack() as opened:
        folder = opened.enter_context(RunFolder(out))
        connections = Database(database)
        opened.callback(connections.close)
        state, shared = SqlState(connections), SharedRounds(connections)
        training = DeployedTraining(
            task.deployment, task.model, task.fingerprint, folder, state, task.score, task.sampler
        )
        opened.enter_context(draining_signals(draining.set))
        rules = rules_of(task.deployment)
        runner = SharedCohortRunner(shared, task.deployment, agreement(task), rules, draining.is_set)
        standing = SharedProgress(runner, state, draining.is_set)
        if show is not None:
            overview = Overview(task.deployment, standing, training, state)
            await start_listening(opened, show(overview, CallMetrics()), "operators")
        over = await asyncio.to_thread(training.run, runner, observe, draining.is_set)
        if over:
            shared.end_run()
            standing.finished = True
        event("run_over" if over else "drained")
        return over


async def aggregate(
    task: Task, out: Path, listen: Listen, database: str, linger: float = 0.0, show: Show | None = None
) -> None:
    """Run an aggregator until the run is over or it is asked to stop.

    Args:
      task: what is trained, as the coordinator has it.
      out: folder for uploads and downloads; made where absent.
      listen: makes the transport.
      database: URL of the state.
      linger: seconds for which clients are still told that the run is over.
      show: makes the operators' listener, for metrics alone; there is none where None.

    Raises:
      UserError: the settings are not those of the coordinator, or the address is taken.
    """
    return_freed_memory()
    out.mkdir(parents=True, exist_ok=True)
    async with contextlib.AsyncExitStack() as opened:
        connections = Database(database)
        opened.callback(connections.close)
        aggregator = make_aggregator(task, connections, out)
        opened.enter_context(draining_signals(aggregator.drain))
        handlers: Handlers = aggregator
        if show is not None:
            metrics = CallMetrics()
            handlers = HandlersWithMetrics(aggregator, metrics)
            await start_listening(opened, show(None, metrics), "operators")
        await start_listening(opened, listen(handlers), "clients")
        tasks = [asyncio.create_task(work) for work in (aggregator.follow(), aggregator.save_check_ins())]
        try:
            while not aggregator.over:
                await asyncio.wait(tasks, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for ended in filter(asyncio.Task.done, tasks):
                    ended.result()
            event("drained" if aggregator.draining else "run_over")
            if not aggregator.draining:
                await asyncio.sleep(linger)
        finally:
            for one in tasks:
                one.cancel()


def make_aggregator(task: Task, database: Database, out: Path) -> Aggregator:
    """Put together what answers clients; call it in the event loop.

    Args:
      task: what is trained.
      database: of the run.
      out: folder for uploads and downloads.

    Returns:
      The aggregator.
    """
    deployment = task.deployment
    like = jax.eval_shape(task.model.init, jax.random.key(0))

    def new_sum(plan: RoundPlan, clip_norm: float | None) -> StreamingSum:
        rules = deployment.aggregation_rules()
        return StreamingSum(like, deployment.compressor(), rules, clip_norm, plan.upload_key())

    return Aggregator(
        shared=SharedRounds(database),
        agreement=agreement(task),
        new_sum=new_sum,
        deployment=deployment,
        folder=out / TRANSFERS_FOLDER,
        **desk_of(task, like, SqlState(database), out),
    )


def agreement(task: Task) -> str:
    """Digest what coordinator and aggregators must have in common: the SHA-256, in hex, of a description in JSON."""
    deployment = task.deployment
    rules = deployment.aggregation_rules()
    described = {
        "protocol": PROTOCOL,
        "program": MessageToDict(write_training_program(deployment.model, task.model, deployment)),
        "vocabulary": hashlib.sha256(task.vocabulary).hexdigest(),
        "download_encoding": deployment.download_encoding,
        "weighting": rules.weighting,
        "clip_norm": rules.clip_norm,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
