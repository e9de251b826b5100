"""What the runs of a comparison state about their privacy, by mechanism and by the epsilon that was asked for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.origins.ancestry import NOT_PRIVATE, REPEATABLE
from fedlm.simulations.comparisons.cells import CellResult

NO_NOISE = "no noise"


class PrivacyKey(NamedTuple):
    """What sets the privacies of a comparison apart: the mechanism, and the epsilon where one was asked for."""

    mechanism: str
    target_epsilon: float | None


@dataclass(frozen=True)
class RunPrivacy:
    """The privacy of all runs with one mechanism and one target.

    Attributes:
      target_epsilon: that was asked for, where it was; it holds for private runs only.
      private: whether each of the runs has a guarantee.
      runs: how many they are, finished or not.
      reasons: why nothing is promised of those of which nothing is.
      epsilon: that none of them exceeds; None where they are not private, or none is finite.
      noise_multiplier: None where there is no noise, or no run got so far.
      statements: what the runs say, each once; without an epsilon where they are not private.
    """

    mechanism: str = "none"
    target_epsilon: float | None = None
    private: bool = False
    epsilon: float | None = None
    noise_multiplier: float | None = None
    statements: tuple[str, ...] = ()
    runs: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def level(self) -> str:
        """What mechanisms are compared at: an epsilon, or why there is none."""
        if self.mechanism == "none":
            return NO_NOISE
        if self.private:
            return "no finite epsilon" if self.epsilon is None else f"epsilon {rounded_up(self.epsilon)}"
        noise = "" if self.noise_multiplier is None else f", noise multiplier {self.noise_multiplier:.4g}"
        return NOT_PRIVATE + noise

    @property
    def words(self) -> str:
        """Mechanism and level, such as `tree, epsilon 5`."""
        return self.level if self.mechanism == "none" else f"{self.mechanism}, {self.level}"


def privacy_key(result: CellResult) -> PrivacyKey:
    """Find what a run's privacy is told apart by."""
    privacy = result.cell.experiment.privacy
    return PrivacyKey(privacy.privacy, privacy.target_epsilon)


def run_privacies(results: Sequence[CellResult]) -> dict[PrivacyKey, RunPrivacy]:
    """Put together what runs state about their privacy, in the order of their first cells."""
    runs: dict[PrivacyKey, list[CellResult]] = {}
    for result in results:
        runs.setdefault(privacy_key(result), []).append(result)
    return {key: _privacy_of(key, of_key) for key, of_key in runs.items()}


def _privacy_of(key: PrivacyKey, results: Sequence[CellResult]) -> RunPrivacy:
    if key.mechanism == "none":
        return RunPrivacy(statements=(NOT_PRIVATE,), runs=len(results))
    ended = [result.summary for result in results if result.status != "failed"]
    noise = next((summary["noise_multiplier"] for summary in ended if summary.get("noise_multiplier")), None)
    guarantees = [summary["privacy_guarantee"] for summary in ended]
    reasons = {reason for summary in ended for reason in summary["not_private_because"]}
    if any(result.cell.experiment.privacy.noise_seed != "entropy" for result in results):
        reasons.add(REPEATABLE)
    if not ended:
        reasons.add("no run came to its end and stated what it promises")
    if reasons:
        # What such a run says may go on with the epsilon that secret noise would have had.
        told = tuple(sorted(reasons))
        statement = f"{NOT_PRIVATE}: {'; '.join(told)}"
        return RunPrivacy(*key, False, None, noise, (statement,), len(results), told)
    stated = [guarantee["epsilon"] for guarantee in guarantees]
    most = math.inf if None in stated else max(stated)
    within = key.target_epsilon is not None and most <= key.target_epsilon
    epsilon = key.target_epsilon if within else (most if math.isfinite(most) else None)
    statements = {summary["privacy"] for summary in ended}
    return RunPrivacy(*key, True, epsilon, noise, tuple(sorted(statements)), len(results))
