"""How far rounds are that aggregators collect, for operators who look at the coordinator."""

import time
from collections.abc import Callable

from fedlm.fl_core.deployment.aggregators.shared_runner import SharedCohortRunner
from fedlm.fl_core.deployment.server.client_registry import DAY_SECONDS, ClientsSeen
from fedlm.fl_core.deployment.server.round_rules import RoundProgress
from fedlm.fl_core.deployment.state.state_sql import SqlState


class SharedStatus:
    """A `ServerStatus` (see `operations.overview`) of what aggregators have written to the database."""

    def __init__(self, runner: SharedCohortRunner, state: SqlState, draining: Callable[[], bool]):
        self._runner, self._state, self._draining = runner, state, draining
        self.finished = False

    def progress(self) -> RoundProgress | None:
        found, opened = self._runner.progress()
        if found is None:
            return None
        # Aggregators write check-ins down every second, and who is selected at once.
        return found._replace(checked_in=max(found.selected, self._state.clients_since(opened)))

    def clients_seen(self) -> ClientsSeen:
        return ClientsSeen(self._state.clients_since(0.0), self._state.clients_since(time.time() - DAY_SECONDS))

    @property
    def draining(self) -> bool:
        return self._draining()
