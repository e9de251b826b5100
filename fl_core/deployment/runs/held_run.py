"""A run that one process holds: its rounds, and all that its clients talk to."""

import asyncio
from dataclasses import dataclass

from fedlm.fl_core.deployment.operations.overview import Overview
from fedlm.fl_core.deployment.server.client_handlers import ClientHandlers
from fedlm.fl_core.deployment.server.client_service import ClientService, secure_settings
from fedlm.fl_core.deployment.server.local_rounds import LocalRounds, NetworkCohortRunner
from fedlm.fl_core.deployment.server.task import Task
from fedlm.fl_core.deployment.server.training import DeployedTraining
from fedlm.fl_core.deployment.state.state_sql import SqlState
from fedlm.fl_core.deployment.transparency.logged_run import LoggedRun
from fedlm.fl_core.deployment.transparency.stored_log import StoredLog
from fedlm.fl_core.runs.driver import Observer
from fedlm.fl_core.runs.run_folder import RunFolder


@dataclass(frozen=True)
class HeldRun:
    """A run of a population that goes on in this process while `train` does. Used in one event loop."""

    population: str
    rounds: LocalRounds
    overview: Overview
    handlers: ClientHandlers
    _training: DeployedTraining
    _service: ClientService
    _logged: LoggedRun

    @staticmethod
    async def open(task: Task, folder: RunFolder, state: SqlState, log: StoredLog) -> "HeldRun":
        """Find out where a run stands, enter that in the log, and prepare to go on. Raises UserError where settings,
        folder and state do not belong together."""

        def read() -> tuple[DeployedTraining, ClientService, LoggedRun]:
            training = DeployedTraining(task, folder, state)
            secure = secure_settings(task, state, training.noised)
            service = ClientService.make(task, state, folder.directory, secure)
            return training, service, LoggedRun(log, task.deployment.population, state.run(), training.ledger)

        training, service, logged = await asyncio.to_thread(read)
        rounds = LocalRounds(service)
        overview = Overview(task.deployment, rounds, training, state)
        return HeldRun(
            task.deployment.population, rounds, overview, service.handlers(rounds), training, service, logged
        )

    async def train(self, observe: Observer) -> bool:
        """Run rounds until the last, or until `rounds.drain`; returns whether the run is over.

        Args:
          observe: hears of each round, in another thread.
        """
        runner = NetworkCohortRunner(self.rounds, asyncio.get_running_loop(), self._service)
        saving = asyncio.create_task(self.rounds.registry.save_now_and_then())
        observe = self._logged.before(observe)
        try:
            return await asyncio.to_thread(self._training.run, runner, observe, lambda: self.rounds.draining)
        finally:
            saving.cancel()
