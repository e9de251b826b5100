"""Makes the sums of a run's rounds, as its settings say how reports become one."""

from pathlib import Path

from fedlm.fl_core.deployment.server.reports.robust_sums import RobustRule, RobustSum
from fedlm.fl_core.deployment.server.reports.streaming_sum import StreamingSum, SumSettings
from fedlm.fl_core.round_loop import RoundPlan


class RoundSums:
    """Makes the sum of no report, for each attempt at a round."""

    def __init__(self, settings: SumSettings, rule: RobustRule, cohort_size: int, folder: Path):
        """Note what sums are made of; a round waits for `cohort_size` reports where it names no clients."""
        self._settings, self._rule, self._cohort_size, self._folder = settings, rule, cohort_size, folder
        self._compiled = False

    def new(self, plan: RoundPlan, clip_norm: float | None) -> StreamingSum:
        """Make the sum of a round, with its clip norm: None for that of the rules."""
        if self._rule.name == "mean":
            return StreamingSum(self._settings, plan.upload_key(), clip_norm)
        most = len(plan.clients) or self._cohort_size
        return RobustSum(self._settings, plan.upload_key(), self._rule, self._folder, most, clip_norm)

    def compile(self, plan: RoundPlan, clip_norm: float | None) -> None:
        """Compile what adds a report, once, so that the first of a run does not wait for it."""
        if not self._compiled:
            self.new(plan, clip_norm).compile()
            self._compiled = True
