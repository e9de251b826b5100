"""What the log has of a run beside its plan: its statement of privacy, and its releases."""

import json
from typing import TYPE_CHECKING, Any

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.transparency.stored_log import StoredLog
from fedlm.fl_core.privacy.origins.ancestry import NOT_PRIVATE
from fedlm.fl_core.runs.driver import Observer

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.record.ledger import PrivacyLedger

_STATED = ("privacy", "privacy_guarantee", "not_private_because")
_SPENT = ("release", "restart")


class LoggedRun:
    """Enters what becomes of a run; used in one thread at a time."""

    def __init__(self, log: StoredLog, population: str, run: str, ledger: "PrivacyLedger | None"):
        """Enter what is promised of all rounds, and what was released before; see `StoredLog.enter` for errors."""
        self._log, self._ledger, self._entered = log, ledger, 0
        self._population, self._run = population, run
        log.enter([self._leaf(messages.LogEntry(statement=json.dumps(_statement(ledger))))])
        self.released()

    def released(self) -> None:
        """Enter what the ledger has of releases since this was called last; when it returns, devices may hear."""
        records = [] if self._ledger is None else self._ledger.records
        spent = [one for one in records[self._entered :] if one["kind"] in _SPENT]
        self._log.enter([self._leaf(messages.LogEntry(release=json.dumps(one))) for one in spent])
        self._entered = len(records)

    def before(self, observe: Observer) -> Observer:
        """Make of what hears of each round what hears of it once its release is in the log."""

        def logged(row: dict[str, Any]) -> None:
            self.released()
            observe(row)

        return logged

    def _leaf(self, entry: messages.LogEntry) -> bytes:
        entry.population, entry.run = self._population, self._run
        return entry.SerializeToString()


def _statement(ledger: "PrivacyLedger | None") -> dict[str, object]:
    if ledger is None:
        return {"privacy": NOT_PRIVATE}
    from fedlm.fl_core.privacy.statement import state_plan

    stated = state_plan(ledger.plan, ledger.delta, ledger.about).as_json()
    return {name: stated[name] for name in _STATED}
