"""Makes the sums of a run's rounds, as its settings say how reports become one."""

from fedlm.fl_core.deployment.server.reports.robust_sums import RobustRule, RobustSum
from fedlm.fl_core.deployment.server.reports.secure_sum import SecureSettings, SecureSum
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum, SumSettings
from fedlm.fl_core.deployment.server.reports.upload_buffers import DiskRoom
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.round_loop import RoundPlan


class RoundSums:
    """Makes the sum of no report, for each attempt at a round."""

    def __init__(
        self,
        settings: SumSettings,
        rule: RobustRule,
        most_reports: int,
        room: DiskRoom,
        *,
        secure: SecureSettings | None = None,
    ):
        """Note what sums are made of; a round has `most_reports` at most where it names no clients."""
        self._secure = secure
        self._settings, self._rule, self._most_reports, self._room = settings, rule, most_reports, room
        self._compiled = False

    def new(self, plan: RoundPlan, clip_norm: float | None) -> StreamingSum:
        """Make the sum of a round, with its clip norm; None leaves norms alone.

        Raises:
          ConfigurationError: it needs a file for which the disk has no room.
        """
        if self._secure is not None:
            return SecureSum(self._secure, plan)
        if self._rule.name == "mean":
            return StreamingSum(self._settings, plan.upload_key(), clip_norm)
        most = len(plan.clients) or self._most_reports
        made = RobustSum(
            self._settings, plan.upload_key(), self._rule, folder=self._room.folder, most=most, clip_norm=clip_norm
        )
        if self._room.left() < 0:
            raise ConfigurationError(
                f"{self._room.folder}: with {most} updates, which the aggregation {self._rule.name} keeps until a "
                f"round's end, the disk has less than {self._room.kept:,} bytes left for the database and the next "
                "checkpoint; make room"
            )
        return made

    def compile(self, plan: RoundPlan, clip_norm: float | None) -> None:
        """Compile what adds a report, once, so that the first of a run does not wait for it."""
        if not self._compiled:
            self.new(plan, clip_norm).compile()
            self._compiled = True
