"""Which clients take part in an attempt whose sum is secure, and when each of its steps is over."""

import math

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError
from fedlm.fl_core.deployment.secure_aggregation.secure_round import SecureRound
from fedlm.fl_core.deployment.server.local_collection import LocalCollection
from fedlm.fl_core.deployment.server.reports.attempt import Attempt
from fedlm.fl_core.deployment.server.reports.secure_sum import SecureSum
from fedlm.fl_core.deployment.server.round_rules import RoundRules
from fedlm.fl_core.deployment.state.state import AttemptRecord

_LONGEST_LOOK = 0.5


class SecureCollection(LocalCollection):
    """A `LocalCollection` whose clients train, then mask and reveal together.

    Keys are taken until all that were selected have trained or declined, or until the deadline. Each further step is
    over when all members have answered, or after `reporting_seconds`. No client is let in beside others that are
    silent: whoever has no keys in the roster cannot be.
    """

    def __init__(self, attempt: Attempt, rules: RoundRules, secure: SecureRound):
        super().__init__(attempt, rules)
        self._secure = secure

    @property
    def _sum(self) -> SecureSum:
        assert isinstance(self.attempt.sum, SecureSum)
        return self.attempt.sum

    def answered(self, client: int, receipt: messages.UploadReply) -> None:
        # Of who declines after the roster was made, no step waits for an answer.
        if client not in self.attempt.accepted:
            self._sum.leave(client)
        super().answered(client, receipt)

    @property
    def _patience_ends(self) -> float:
        return math.inf

    def wants(self, client: int, now: float) -> bool:
        return self._secure.attempt.phase == "advertising" and super().wants(client, now)

    def step_is_over(self, now: float) -> bool:
        """Say whether the step that runs is to end now."""
        attempt, secure = self.attempt, self._secure
        if not attempt.participants or self._over:
            return False
        if now >= attempt.deadline or secure.answered:
            return True
        if secure.attempt.phase != "advertising" or now < self.selection_ends or self._candidates:
            return False
        return all(
            one.receipt is not None or self._sum.has_keys(client) for client, one in attempt.participants.items()
        )

    def end_step(self) -> None:
        """End the step that runs; in the thread that adds reports."""
        if self._secure.attempt.phase == "advertising":
            # The event loop may select clients meanwhile.
            there = self.attempt.participants.copy()
            self._sum.forget_keys({client for client, one in there.items() if one.receipt is None})
        try:
            self._secure.end_step()
        except AbandonedError:
            return

    def begin_step(self, now: float) -> None:
        """Give the step that begins its time."""
        self.attempt.deadline = min(now + self.rules.reporting_seconds, self._latest_end)

    @property
    def _over(self) -> bool:
        return self._secure.attempt.phase in ("finished", "abandoned")

    def finished(self, now: float) -> bool:
        return self._over

    def next_moment(self, now: float) -> float:
        return min(super().next_moment(now), _LONGEST_LOOK)

    @property
    def counted(self) -> list[int]:
        if self._secure.attempt.phase == "finished":
            return super().counted
        return self._sum.senders

    def record(self, seconds: float) -> AttemptRecord:
        return self._sum.ending(super().record(seconds), [])[0]
