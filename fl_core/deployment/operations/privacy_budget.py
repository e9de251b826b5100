"""What a run has spent of its privacy budget, from its ledger."""

import threading
from typing import Any

from fedlm.fl_core.privacy.accounting import account
from fedlm.fl_core.privacy.ledger import PrivacyLedger
from fedlm.fl_core.runs.round_rows import NOT_PRIVATE


class PrivacyBudget:
    """Accounts a ledger that grows; thread-safe."""

    def __init__(self, ledger: PrivacyLedger, secret: bool):
        """Name the ledger, and whether nobody can compute the noise again; without that there is no guarantee."""
        self._ledger, self._secret = ledger, secret
        self._lock = threading.Lock()
        self._budget = account(ledger.plan, ledger.delta)
        self._spent: dict[str, Any] = {}
        self._records = 0

    def read(self) -> dict[str, Any]:
        """State what is spent now, and what will be when all planned rounds are released.

        Returns:
          JSON-able: `private`, `epsilon_spent`, `epsilon_budget` (None where not finite), `delta`, `rho_spent`, `unit`,
          `adjacency`, `mechanism`, `noise_multiplier`, `rounds_released`, `rounds_planned` and `statement`, a
          sentence.
        """
        with self._lock:
            if self._records != len(self._ledger.records):
                self._records = len(self._ledger.records)
                self._spent = self._account()
            return self._spent

    def _account(self) -> dict[str, Any]:
        budget = self._budget
        fixed = {
            "private": self._secret,
            "epsilon_budget": budget.as_json()["epsilon"],
            **{name: getattr(budget, name) for name in ("delta", "unit", "adjacency", "mechanism", "noise_multiplier")},
            "rounds_planned": budget.rounds,
        }
        if not any(end > first for first, end in self._ledger.generations):
            return fixed | {
                "epsilon_spent": 0.0,
                "rho_spent": 0.0,
                "rounds_released": 0,
                "statement": "nothing is spent",
            }
        spent = self._ledger.spent()
        sentence = spent.sentence()
        return fixed | {
            "epsilon_spent": spent.as_json()["epsilon"],
            "rho_spent": spent.rho,
            "rounds_released": spent.rounds,
            "statement": sentence if self._secret else f"{NOT_PRIVATE}: the noise follows from the seed",
        }
