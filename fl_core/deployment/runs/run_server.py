"""A server of several runs: trains one of each population at a time, while clients and operators stay."""

import asyncio
import contextlib
import threading
import time
import traceback
from pathlib import Path

from fedlm.fl_core.deployment.addresses import check_run_name
from fedlm.fl_core.deployment.event_log import event, of_run, warn
from fedlm.fl_core.deployment.leading import leading
from fedlm.fl_core.deployment.runs.current_runs import AnsweringRun, CurrentRuns
from fedlm.fl_core.deployment.runs.held_run import HeldRun
from fedlm.fl_core.deployment.runs.populations import Populations
from fedlm.fl_core.deployment.runs.run_maker import RunMaker, ServerRules, Settings
from fedlm.fl_core.deployment.runs.run_queue import (
    FAILED,
    FINISHED,
    MAY_BE_OVERDUE,
    PAUSED,
    QUEUED,
    STOPPED,
    SUBMITTED,
    UNAPPROVED,
    RunQueue,
    SubmittedRun,
)
from fedlm.fl_core.deployment.server.task import Task
from fedlm.fl_core.deployment.server.training import planned_reservation
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.retrying import with_retries
from fedlm.fl_core.deployment.state.state import OtherStateError, StateError
from fedlm.fl_core.deployment.state.state_sql import state_in
from fedlm.fl_core.deployment.transparency.stored_log import StoredLog
from fedlm.fl_core.errors import ConfigurationError, DiskError, UserError, setting
from fedlm.fl_core.runs.driver import Observer
from fedlm.fl_core.runs.run_folder import RunFolder, lock_of_run

RUNS_FOLDER = "runs"
_LOOK_SECONDS = 1.0


class RunServer:
    """Trains what its operators submit. Make it in the event loop.

    Attributes:
      clients: answers clients.
      draining: whether the process is going down.
      queue: of all runs.
      log: of what devices are told of all runs.
      held: the runs that are trained now, by name.
      populations: what is promised of all runs together.
      rules: what holds beside the settings of runs.
    """

    populations = Populations()
    rules = ServerRules()

    def __init__(self, directory: Path, database: Database, maker: RunMaker, observe: Observer):
        """Prepare; nothing is trained before `train`.

        Args:
          directory: in which each run has a folder.
          database: of the queue and the log.
          maker: makes runs of settings.
          observe: see `HeldRun.train`.
        """
        self.clients, self.draining = CurrentRuns(), False
        self.queue, self.log = RunQueue(database), StoredLog(database)
        self.held: dict[str, HeldRun] = {}
        self._directory = directory
        self._maker, self._observe, self._submitting = maker, observe, threading.Lock()
        self._changed, self._loop = asyncio.Event(), asyncio.get_running_loop()

    # What the process does.

    def promise(self, populations: Populations) -> None:
        """Take private runs of these alone, and settle what a process that was killed left undone."""
        self.populations, self.clients.promised = populations, tuple(populations.all)
        for run in self.queue.all():
            if run.state == SUBMITTED:
                try:
                    self._admit(run)
                except (DiskError, StateError):
                    raise
                except UserError as error:
                    warn("run_withdrawn", run=run.name, reason=error.for_command_line())
            elif run.state not in (UNAPPROVED, QUEUED, PAUSED):
                populations.give_back(run)
        # A process that was killed may have removed a run from the queue and kept its reservation.
        for name in populations.give_back_of_others(self.queue.all()):
            event("reservation_given_back", run=name)

    async def train(self) -> None:
        """Train what is queued, until asked to drain.

        Raises:
          DiskError, StateError: the disk is full, or a database cannot be used; runs stay queued.
        """
        keeping_time = asyncio.create_task(self._keep_time())
        training = dict[str, asyncio.Task[None]]()  # by population
        try:
            while training or not self.draining:
                self._changed.clear()
                await self._begin(training)
                # A run can become due without a call.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _LOOK_SECONDS)
                for population in [name for name, task in training.items() if task.done()]:
                    training.pop(population).result()
        except asyncio.CancelledError:
            for task in training.values():
                task.cancel()
            raise
        finally:
            keeping_time.cancel()
            self.drain()
            await asyncio.gather(*training.values(), return_exceptions=True)

    async def _begin(self, training: dict[str, asyncio.Task[None]]) -> None:
        """Begin the next run of each population that none is trained of."""
        if self.draining:
            return
        runs = await asyncio.to_thread(with_retries, self.queue.next_runs)
        if runs and not self.held:
            self.clients.first = (await asyncio.to_thread(with_retries, self.queue.all))[0].population
        self.clients.queued = frozenset(runs)
        for population, run in runs.items():
            if population not in training:
                with of_run(run.name):
                    task = training[population] = asyncio.create_task(self._train(run))
                task.add_done_callback(lambda _: self._changed.set())

    async def _keep_time(self) -> None:
        """Stop runs whose `not_after` has passed, and end what is held and not queued any more, until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self._stop_overdue)
                for name in list(self.held):
                    self._drain_held(await asyncio.to_thread(self.queue.find, name))
            except UserError as error:
                warn("queue_not_read", why=error.for_command_line())
            await asyncio.sleep(_LOOK_SECONDS)

    def _stop_overdue(self) -> None:
        for run in self.queue.overdue():
            try:
                with self._submitting:
                    if self.queue.find(run.name).state not in MAY_BE_OVERDUE:
                        continue
                    self.queue.become(run.name, STOPPED, "its not_after has passed")
                    self.populations.give_back(run)
            except (UserError, OSError) as error:
                warn("overdue_not_stopped", run=run.name, why=str(error))
            else:
                event("run_overdue", run=run.name)

    async def _train(self, run: SubmittedRun) -> None:
        state, reason = FINISHED, ""
        try:
            if not await self._hold(run):
                event("run_drained")
                return
        except UserError as error:
            # What would fail the next run too.
            if isinstance(error, (DiskError, StateError)) and not isinstance(error, OtherStateError):
                raise
            state, reason = FAILED, error.for_command_line()
        except Exception as error:
            warn("run_broke", why=traceback.format_exc())
            state, reason = FAILED, f"{type(error).__name__}: {error}"
        event(f"run_{state}", reason=reason)
        # Where it was stopped meanwhile, it stays so.
        with contextlib.suppress(ConfigurationError):
            await asyncio.to_thread(self._end, run, state, reason)

    async def _hold(self, run: SubmittedRun) -> bool:
        task = await asyncio.to_thread(self._task, run)
        # Whoever stopped it meanwhile gave back what it had reserved.
        if (await asyncio.to_thread(with_retries, lambda: self.queue.find(run.name))).state != QUEUED:
            return False
        out, private = self.folder(run.name), task.deployment.privacy.is_private
        async with contextlib.AsyncExitStack() as opened:
            lock = opened.enter_context(contextlib.closing(lock_of_run(out, private)))
            state = await asyncio.to_thread(state_in, out)
            opened.callback(state.close)
            await opened.enter_async_context(leading(lock, state.database, stands_by=True))
            folder = opened.enter_context(RunFolder(out, private=private, fence=state.database.fenced))
            try:
                held = await HeldRun.open(task, folder, state, self.log)
                event("run_begun", rounds=len(folder.rows))
                self.held[run.name] = held
                self.clients.begin(AnsweringRun(run.name, run.population, held.handlers, held.rounds.keeps))
                # What was asked for before it was held is in the queue alone.
                self._drain_held(await asyncio.to_thread(with_retries, lambda: self.queue.find(run.name)))
                return await held.train(self._observe)
            finally:
                self.clients.end(run.population)
                self.held.pop(run.name, None)

    def _task(self, run: SubmittedRun) -> Task:
        """Make what is trained, with what its clients gave to other runs."""
        task, population = self._maker.make_task(run.settings), self.populations.of(run)
        if population is None:
            return task
        runs = with_retries(self.queue.all)
        others = [one.name for one in runs if one.population == run.population and one.name != run.name]
        return population.place(task, run, map(self.folder, others))

    def _end(self, run: SubmittedRun, state: str, reason: str) -> None:
        with self._submitting:
            with_retries(lambda: self.queue.become(run.name, state, reason))
            self.populations.give_back(run)

    def drain(self) -> None:
        """Let the round under way end, and begin no other."""
        self.draining = True
        for held in self.held.values():
            held.rounds.drain()
        self._changed.set()

    def _drain_held(self, run: SubmittedRun) -> None:
        self._changed.set()
        if (held := self.held.get(run.name)) is not None and (run.state != QUEUED or self.draining):
            held.rounds.drain()

    def folder(self, name: str) -> Path:
        """Name the folder of a run, which is there once it was begun."""
        return self._directory / RUNS_FOLDER / name

    # What operators ask for, in any thread.

    def submit(self, name: str, settings: Settings, by: str = "") -> SubmittedRun:
        """Add a run to the queue, for a person. Raises UserError where it could not be trained."""
        check_run_name(name)
        settings = self._maker.complete(settings)
        if not self.populations.all:
            if settings["privacy"] != "none":
                raise ConfigurationError(
                    f"{setting('privacy')} is {settings['privacy']}, but this server has no budget of privacy; start "
                    f"one with {setting('epsilon')} and {setting('delta')}, in another folder, or train this run "
                    "alone, with `fedlm serve`"
                )
            self._maker.make_task(settings)
            run = self.queue.submit(name, settings, by=by)
        else:
            population = self.populations.chosen(settings)
            settings = population.complete(settings)
            with self._submitting:
                run = self.queue.submit(name, settings, lambda runs: population.first_round(settings, runs), by=by)
                run = self._admit(run) if run.state == SUBMITTED else run
        self._loop.call_soon_threadsafe(self._drain_held, run)
        return run

    def _admit(self, run: SubmittedRun) -> SubmittedRun:
        """Queue a private run, or leave it to be approved, once all that it plans is reserved. Raises UserError, and
        forgets it, where it cannot be trained or there is no room."""
        try:
            self._reserve(run)
        except (DiskError, StateError):
            # It may be submitted again.
            raise
        except UserError:
            self.queue.withdraw(run.name)
            self.populations.give_back(run)
            raise
        return self.queue.become(run.name, UNAPPROVED if self.rules.wants_approval else QUEUED)

    def approve(self, name: str, by: str) -> SubmittedRun:
        """Let a private run be trained. Raises UserError where it waits for no approval, or not for this person's."""
        with self._submitting:
            run = self.queue.approve(name, by)
        self._loop.call_soon_threadsafe(self._drain_held, run)
        return run

    def _reserve(self, run: SubmittedRun) -> None:
        if (population := self.populations.of(run)) is not None:
            task = population.place(self._maker.make_task(run.settings), run)
            population.reserve(run, planned_reservation(task, self.folder(run.name)))

    def become(self, name: str, state: str) -> SubmittedRun:
        """Pause a run, stop it, or queue it again; `state` is one of the queue's. Raises UserError where it cannot be
        that any more."""
        with self._submitting:
            known = self.queue.find(name)
            if state == QUEUED and known.ends <= time.time():
                raise ConfigurationError(f"the run {name!r} may be trained no more: {setting('not_after')} has passed")
            if state == QUEUED and known.state == FAILED:
                # What it had not spent was given back.
                self._reserve(known)
            # Nobody goes past the budget, or the approval, of a run whose submission was cut short.
            cut_short = state == QUEUED and known.state == SUBMITTED
            run = self._admit(known) if cut_short else self.queue.become(name, state)
            if state == STOPPED:
                self.populations.give_back(run)
        self._loop.call_soon_threadsafe(self._drain_held, run)
        return run
