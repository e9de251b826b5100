"""How rounds stand that aggregators collect, for operators who look at the coordinator."""

import time
from collections.abc import Callable

from fedlm.fl_core.deployment.aggregators.shared_runner import SharedCohortRunner
from fedlm.fl_core.deployment.server.client_registry import DAY_SECONDS, ClientsSeen
from fedlm.fl_core.deployment.server.round_attempt import Progress
from fedlm.fl_core.deployment.state.state import State


class SharedProgress:
    """A `ServerProgress` that asks the database what aggregators have written there.

    Attributes:
      finished: whether the run is over.
    """

    def __init__(self, runner: SharedCohortRunner, state: State, draining: Callable[[], bool]):
        """Name what to ask.

        Args:
          runner: of the rounds.
          state: where aggregators record check-ins.
          draining: whether the server is going down.
        """
        self._runner, self._state, self._draining = runner, state, draining
        self.finished = False

    def progress(self) -> Progress | None:
        """See `ServerProgress.progress`."""
        found, opened = self._runner.progress()
        if found is None:
            return None
        # Aggregators write check-ins down every second, and who is selected at once.
        return found._replace(checked_in=max(found.selected, self._state.clients_since(opened)))

    def clients_seen(self) -> ClientsSeen:
        """See `ServerProgress.clients_seen`."""
        return ClientsSeen(self._state.clients_since(0.0), self._state.clients_since(time.time() - DAY_SECONDS))

    @property
    def draining(self) -> bool:
        """See `ServerProgress.draining`."""
        return self._draining()
