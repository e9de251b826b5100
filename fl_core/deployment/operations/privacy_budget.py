"""What a run has spent of its privacy budget, from its ledger."""

import threading
from typing import Any

from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.statement import state, state_plan


class PrivacyBudget:
    """Accounts a ledger that grows; thread-safe."""

    def __init__(self, ledger: PrivacyLedger, secret: bool):
        """Name the ledger, and whether nobody can compute the noise again; without that there is no guarantee."""
        self._ledger, self._secret = ledger, secret
        self._lock = threading.Lock()
        self._planned = state_plan(ledger.plan, ledger.delta, ledger.about, secret=secret)
        self._spent: dict[str, Any] = {}
        self._records = 0

    def read(self) -> dict[str, Any]:
        """State what is spent now, and what will be when all planned rounds are released.

        Returns:
          JSON-able: `private`, `epsilon_spent`, `epsilon_budget` (None where not finite, or nothing is promised),
          `delta`, `rho_spent`, `unit`, `adjacency`, `mechanism`, `noise_multiplier`, `rounds_released`,
          `rounds_planned` and `statement`, a sentence.
        """
        with self._lock:
            if self._records != len(self._ledger.records):
                self._records = len(self._ledger.records)
                self._spent = self._account()
            return self._spent

    def _account(self) -> dict[str, Any]:
        planned, spent = self._planned, state(self._ledger, secret=self._secret)
        fixed = {
            "private": planned.total is not None,
            "epsilon_budget": planned.total and planned.total.as_json()["epsilon"],
            **{name: getattr(planned.own, name) for name in ("delta", "mechanism", "noise_multiplier")},
            "rounds_planned": planned.own.rounds,
            "rounds_released": spent.own.rounds,
        }
        stated = spent.total or spent.own
        nothing = not spent.own.rounds and not spent.ancestry and spent.counts.vocabulary.private is None
        return fixed | {
            "unit": stated.unit,
            "adjacency": stated.adjacency,
            "epsilon_spent": 0.0 if nothing else spent.total and spent.total.as_json()["epsilon"],
            "rho_spent": 0.0 if nothing else spent.total and spent.total.rho,
            "statement": "nothing is spent" if nothing else spent.sentence(),
        }
