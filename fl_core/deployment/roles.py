"""Puts the processes of a deployment's server together, and runs each until its rounds are over or it is asked to stop.

One process does everything (`serve`), or a coordinator runs the rounds (`coordinate`) and aggregators answer clients
(`aggregate`); these share a database and nothing else, see `fedlm.fl_core.deployment.aggregators.shared_rounds`.
"""

import asyncio
import contextlib
import hashlib
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.composed_settings import settings_as_json
from fedlm.fl_core.deployment.aggregators.aggregator import Aggregator
from fedlm.fl_core.deployment.aggregators.member_messages import MemberMessages
from fedlm.fl_core.deployment.aggregators.secure_runner import SecureCohortRunner
from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.aggregators.shared_runner import SharedCohortRunner
from fedlm.fl_core.deployment.aggregators.shared_status import SharedStatus
from fedlm.fl_core.deployment.endpoints import Endpoints, listen
from fedlm.fl_core.deployment.event_log import event, handled_by
from fedlm.fl_core.deployment.operations.overview import Overview, ProcessShown
from fedlm.fl_core.deployment.protocol.training_program import write_training_program
from fedlm.fl_core.deployment.runs.held_run import HeldRun
from fedlm.fl_core.deployment.runs.population_settings import PopulationSettings
from fedlm.fl_core.deployment.runs.populations import Populations
from fedlm.fl_core.deployment.runs.run_maker import RunMaker, ServerRules
from fedlm.fl_core.deployment.runs.run_server import RunServer
from fedlm.fl_core.deployment.runs.shown_runs import RunLogs, ShownRuns
from fedlm.fl_core.deployment.security.audit_log import AuditLog
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.server.client_service import ClientService, make_offer, secure_settings
from fedlm.fl_core.deployment.server.task import Task
from fedlm.fl_core.deployment.server.training import DeployedTraining
from fedlm.fl_core.deployment.state.retrying import with_retries
from fedlm.fl_core.deployment.state.run_names import refuse_other_folder
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, SqlState, sqlite_url
from fedlm.fl_core.deployment.transparency.log_handlers import HandlersWithLog
from fedlm.fl_core.deployment.transparency.logged_run import LoggedRun
from fedlm.fl_core.deployment.transparency.stored_log import StoredLog
from fedlm.fl_core.deployment.transport.http_enrolment import EnrolmentServer
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.process_memory import return_freed_memory
from fedlm.fl_core.runs.driver import Observer
from fedlm.fl_core.runs.files.private_files import keep_private
from fedlm.fl_core.runs.files.run_lock import FolderLock
from fedlm.fl_core.runs.run_folder import (
    AGGREGATOR,
    QUEUE_FILE,
    SERVER,
    RunFolder,
    lock_of_run,
    refuse_other_contents,
)

LOGS_FOLDER, AUDIT_FILE = "logs", "audit.jsonl"
_LOOK_SECONDS = 0.1


async def serve(task: Task, out: Path, endpoints: Endpoints, observe: Observer, *, database: str | None = None) -> bool:
    """Run a deployment's server in one process.

    Args:
      task: what is trained.
      out: folder of the run.
      endpoints: where clients and operators reach it.
      observe: hears of each round, in another thread.
      database: URL of the state; SQLite in the folder where None.

    Returns:
      Whether the run is over; else it was asked to stop.

    Raises:
      UserError: settings, folder and state do not belong together, or the address is taken.
    """
    return_freed_memory()
    async with contextlib.AsyncExitStack() as opened:
        url = database or sqlite_url(out / DATABASE_FILE)
        folder, state = await opened.enter_async_context(_led(task, out, endpoints, url))
        log = await asyncio.to_thread(StoredLog, state.database)
        run = await HeldRun.open(task, folder, state, log)
        await opened.enter_async_context(endpoints.listening(HandlersWithLog(run.handlers, log), run.overview))
        with _draining_signals(run.rounds.drain):
            over = await run.train(observe)
            event("run_over" if over else "drained")
            if over and not run.rounds.draining:
                run.rounds.finished = True
                await asyncio.sleep(endpoints.linger)
        return over


@contextlib.asynccontextmanager
async def _led(task: Task, out: Path, endpoints: Endpoints, url: str) -> AsyncIterator[tuple[RunFolder, SqlState]]:
    """Open the folder and the state of a run, once this process leads, for as long as the context lasts."""
    private = task.deployment.privacy.is_private
    with contextlib.closing(lock_of_run(out, private)) as lock:
        async with endpoints.reached(url) as database:
            state = SqlState(database)
            if endpoints.stands_by:
                await asyncio.to_thread(refuse_other_folder, out, state)
            async with endpoints.leading(lock, database):
                with RunFolder(out, private=private, fence=database.fenced) as folder:
                    yield folder, state


async def serve_runs(
    maker: RunMaker,
    directory: Path,
    endpoints: Endpoints,
    observe: Observer,
    *,
    promised: PopulationSettings = PopulationSettings(),  # noqa: B008
    rules: ServerRules = ServerRules(),  # noqa: B008
) -> None:
    """Train the runs that operators submit, one of each population at a time, until asked to stop.

    Args:
      maker: makes runs of settings.
      directory: of the queue's database, the runs' folders and their logs.
      endpoints: where clients and operators reach the server.
      observe: hears of each round, in another thread.
      promised: what is promised of all runs together.
      rules: what holds beside the settings of runs.

    Raises:
      UserError: another process serves this directory, something else is in it, or an address is taken; or the disk
        is full, or a database cannot be used.
    """
    return_freed_memory()
    make_folder(directory)
    refuse_other_contents(directory, SERVER)
    async with contextlib.AsyncExitStack() as opened:
        lock = opened.enter_context(contextlib.closing(FolderLock(directory)))
        database = await opened.enter_async_context(endpoints.reached(sqlite_url(directory / QUEUE_FILE)))
        await opened.enter_async_context(endpoints.leading(lock, database, instead="folder"))
        server, logs = RunServer(directory, database, maker, observe), RunLogs(directory / LOGS_FOLDER)
        opened.enter_context(handled_by(logs))
        server.rules = rules
        populations = Populations.open(directory, promised, server.queue.all())
        for population in populations.all.values():
            population.budget.fence = database.fenced
        if populations.all:
            await asyncio.to_thread(server.promise, populations)
        elif rules.wants_approval:
            raise ConfigurationError(
                f"{setting('approval')} is of private runs, which need a budget; give {setting('epsilon')} and "
                f"{setting('delta')} too, or leave it out"
            )
        audit = opened.enter_context(contextlib.closing(AuditLog(directory / AUDIT_FILE, database.fenced)))
        shown = ShownRuns(server, database, logs, audit)
        await opened.enter_async_context(endpoints.listening(HandlersWithLog(server.clients, server.log), shown))
        with _draining_signals(server.drain):
            await server.train()
        event("drained")


async def coordinate(task: Task, out: Path, endpoints: Endpoints, observe: Observer, *, database: str) -> bool:
    """Run the coordinator: rounds, noise, ledger and checkpoints. No client talks to it, but operators may.

    Arguments, result and errors are those of `serve`.
    """
    return_freed_memory()
    draining = asyncio.Event()
    async with contextlib.AsyncExitStack() as opened:
        folder, state = await opened.enter_async_context(_led(task, out, endpoints, database))
        connections = state.database
        shared = SharedRounds(connections)
        training = DeployedTraining(task, folder, state)
        logged = LoggedRun(StoredLog(connections), task.deployment.population, state.run(), training.ledger)
        opened.enter_context(_draining_signals(draining.set))
        runner: SharedCohortRunner
        secure = secure_settings(task, state, training.noised)
        if secure is None:
            runner = SharedCohortRunner(shared, task.deployment, agreement(task), draining.is_set)
        else:
            runner = SecureCohortRunner(
                shared,
                task.deployment,
                agreement(task),
                draining.is_set,
                messages=MemberMessages(connections),
                settings=secure,
                run=state.run(),
                offer=make_offer(task),
            )
        status = SharedStatus(runner, state, draining.is_set)
        overview = Overview(task.deployment, status, training, state)
        await opened.enter_async_context(endpoints.listening(None, overview))
        try:
            over = await asyncio.to_thread(training.run, runner, logged.before(observe), draining.is_set)
        finally:
            # Its thread may outlive this, as where the task is cancelled.
            draining.set()
        if over:
            await asyncio.to_thread(with_retries, shared.end_run)
            status.finished = True
        event("run_over" if over else "drained")
        return over


async def aggregate(task: Task, out: Path, endpoints: Endpoints, database: str) -> None:
    """Run an aggregator until the run is over or it is asked to stop, with a folder for uploads and downloads.

    Raises:
      UserError: the settings are not those of the coordinator, or the address is taken.
    """
    return_freed_memory()
    make_folder(out)
    refuse_other_contents(out, AGGREGATOR)
    if task.deployment.privacy.is_private:
        keep_private(out)
    async with contextlib.AsyncExitStack() as opened:
        connections = await opened.enter_async_context(endpoints.reached(database, knows=False))
        service = ClientService.make(task, SqlState(connections), out)
        log = await asyncio.to_thread(StoredLog, connections)
        rounds = Aggregator(SharedRounds(connections), service, agreement(task), task.deployment.saved_every)
        opened.enter_context(_draining_signals(rounds.drain))
        shown = ProcessShown(connections, lambda: not (rounds.finished or rounds.draining))
        await opened.enter_async_context(endpoints.listening(HandlersWithLog(service.handlers(rounds), log), shown))
        tasks = [asyncio.create_task(work) for work in (rounds.follow(), rounds.registry.save_now_and_then())]
        try:
            while not rounds.over:
                await asyncio.wait(tasks, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for ended in filter(asyncio.Task.done, tasks):
                    ended.result()
            event("drained" if rounds.draining else "run_over")
            if not rounds.draining:
                await asyncio.sleep(endpoints.linger)
        finally:
            for one in tasks:
                one.cancel()


async def enrol_devices(keys: Path, address: str) -> None:
    """Give certificates for one-time tokens until asked to stop, with a folder of keys that has the authority's own.

    Raises:
      UserError: there is no authority or no server's certificate, or the address is taken.
    """
    stopped = asyncio.Event()
    async with contextlib.AsyncExitStack() as listening:
        listening.enter_context(_draining_signals(stopped.set))
        await listen(listening, EnrolmentServer(Authority(keys).enrol, address, keys), "devices")
        await stopped.wait()


def agreement(task: Task) -> str:
    """Digest what coordinator and aggregators must have in common: the SHA-256, in hex, of a description in JSON."""
    deployment = task.deployment
    program = write_training_program(deployment.model, task.model, deployment.training, deployment.examples)
    described = {
        "protocol": PROTOCOL,
        "program": MessageToDict(program),
        "vocabulary": hashlib.sha256(task.vocabulary).hexdigest(),
        "settings": settings_as_json(deployment),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def _draining_signals(drain: Callable[[], None]) -> Iterator[None]:
    """Drain when first asked to end; do without where signals cannot be caught, as in another than the main thread."""
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
