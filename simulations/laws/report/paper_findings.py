"""Findings 1 to 10 of McKenna et al. 2025, each tested on laws as far as their grid reaches: one entry each."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.noise import advantage_table, trainings_of
from fedlm.simulations.laws.figures.search import DELTA, EPSILONS, TrainingSearch, noise_multipliers
from fedlm.simulations.laws.figures.table import Progress, in_words, no_progress
from fedlm.simulations.laws.forms.rows import best_rate, final
from fedlm.simulations.laws.measuring.measurements import Measurements
from fedlm.simulations.laws.report import training_findings as of_trainings
from fedlm.simulations.laws.report.training_findings import (
    FEW,
    MOST,
    Judgement,
    Numbers,
    Verdict,
    inside,
    judged,
    not_reached,
    span,
)

_CLAIMED = {"N": 1.0, "epsilon": 0.5, "T": -0.5}
_START = {"examples": 2.0**24, "epsilon": 0.25, "batch": 2.0**10}
_STEPS, _DOUBLINGS = 16_000, 7
_SAME = 1.05  # times the least loss, which counts as nearly the same
_APART = 1.2  # times the least advantage


@dataclass(frozen=True)
class Finding:
    """What laws say of a finding.

    Attributes:
      number: in `FINDINGS`.
      claim: what McKenna et al. 2025 found, and where they say it.
      verdict: whether it holds; `not reached` where the laws' grid, or the measurements, do not reach so far.
      why: what the verdict is by.
      numbers: what was found, in words and as text.
    """

    number: int
    claim: str
    verdict: Verdict
    why: str
    numbers: Numbers = ()


def judge_findings(evidence: Evidence, progress: Progress = no_progress) -> list[Finding]:
    """Test the findings on laws with a surface, where the best training is not at an end of the grid.

    Args:
      evidence: the laws, and the measurements where they are at hand.
      progress: told of each finding.

    Raises:
      ConfigurationError: there is no surface.
    """
    search = evidence.searching()
    findings = []
    for number, (claim, judge) in FINDINGS.items():
        findings.append(Finding(number, claim, *judge(search, evidence)))
        progress(len(findings), len(FINDINGS))
    return findings


def returns_of_doubling() -> dict[str, list[float]]:
    """Compute what each of several doublings, one after the other, takes off the noise-batch ratio at 16,000 steps.

    Of one budget alone, and of two together; 1 is a halved ratio. They begin at 2^24 examples, epsilon 1/4 and batches
    of 1,024.
    """
    doublings = 2.0 ** np.arange(_DOUBLINGS + 1)
    gains = {}
    for names in (("epsilon",), ("batch",), ("examples",), ("epsilon", "batch"), ("examples", "batch")):
        at = {name: value * (doublings if name in names else np.ones_like(doublings)) for name, value in _START.items()}
        ratios = _ratios(at["examples"], at["epsilon"], at["batch"], _STEPS)
        gains[" and ".join(names)] = (ratios[:-1] / ratios[1:] - 1).tolist()
    return gains


def _ratios(examples: ArrayLike, epsilon: ArrayLike, batch_size: ArrayLike, steps: ArrayLike) -> np.ndarray:
    batch_size = np.asarray(batch_size, np.float64)
    return np.asarray(noise_multipliers(batch_size / examples, steps, epsilon, DELTA) / batch_size)


def _returns_of_batches() -> dict[str, float]:
    """Compute how the batch at which doubling it stops to pay depends on N, epsilon and T: the exponent of each.

    That is the batch where doubling it divides the noise-batch ratio by the square root of two, half of what it can
    in logarithms; around 1e8 examples, epsilon 4 and 10,000 steps, by a factor of 16 to both sides (8 of epsilon).
    """
    middle = {"N": 1e8, "epsilon": 4.0, "T": 1e4}
    exponents = {}
    for name, factor in (("N", 16.0), ("epsilon", 8.0), ("T", 16.0)):
        ends = [_batch_of_half_returns(**middle | {name: middle[name] * part}) for part in (1 / factor, factor)]
        exponents[name] = float(np.log(ends[1] / ends[0]) / np.log(factor**2))
    return exponents


def _batch_of_half_returns(N: float, epsilon: float, T: float) -> float:  # noqa: N803
    batches = 2.0 ** np.arange(10, np.floor(np.log2(N / 4)) + 1)
    gains = np.log2(_ratios(N, epsilon, batches, T) / _ratios(N, epsilon, 2 * batches, T))
    at = int(np.argmax(gains < 0.5))
    part = (gains[at - 1] - 0.5) / (gains[at - 1] - gains[at])
    return float(batches[at - 1] * 2**part)


def _larger_epsilon(search: TrainingSearch) -> Judgement:
    exponents = _returns_of_batches()
    numbers = [
        (f"exponent of {name} in that batch (exact; claimed {told:g})", in_words(exponents[name]))
        for name, told in _CLAIMED.items()
    ]
    law = all(abs(exponents[name] - told) <= 0.1 for name, told in _CLAIMED.items())
    tables = [inside(search, 1e8, epsilon) for epsilon in (EPSILONS[0], EPSILONS[-1])]
    both = np.intersect1d(tables[0]["compute"], tables[1]["compute"])
    if len(both) < FEW:
        why = "fewer than three computes have best trainings inside of the grid at epsilon 1 and at 64"
        return not_reached(why, numbers)
    low, high = (
        {name: table[name][np.isin(table["compute"], both)] for name in ("parameters", "batch_size", "steps")}
        for table in tables
    )
    shares = {
        "larger models": float(np.mean(high["parameters"] >= low["parameters"])),
        "smaller batches": float(np.mean(high["batch_size"] <= low["batch_size"])),
        "more steps": float(np.mean(high["steps"] >= low["steps"])),
    }
    numbers += [
        (f"share of {len(both)} computes with {name} at epsilon 64 than at 1", f"{share:.0%}")
        for name, share in shares.items()
    ]
    why = "each to be so at 80 % of computes, and the exponents to be within 0.1"
    return judged(law and min(shares.values()) >= MOST, why, numbers)


def _doubling() -> Judgement:
    gains = returns_of_doubling()
    numbers = [
        (f"gains of doubling {name} again and again (1 halves the ratio)", ", ".join(f"{gain:.2f}" for gain in one))
        for name, one in gains.items()
    ]
    alone = [min(gains[name]) for name in ("epsilon", "batch", "examples")]
    of_two = [min(gains[name]) for name in ("epsilon and batch", "examples and batch")]
    why = "exact: alone the gain to fall below 0.5, together to stay above 0.75"
    return judged(max(alone) < 0.5 and min(of_two) > 0.75, why, numbers)


def physical_batches(measurements: Measurements | None) -> Judgement:
    """Compare the last losses of runs of equal steps by batch size, at equal noise-batch ratios."""
    if measurements is None:
        return not_reached("the measurements are not at hand")
    rows = measurements.where(best_rate(measurements) & final(measurements))
    rows = rows.where(rows.parameters == rows.parameters.min(initial=np.iinfo(np.int64).max))
    slopes = {}
    for ratio in np.unique(rows.noise_batch_ratio):
        same = rows.where(rows.noise_batch_ratio == ratio)
        sizes = np.unique(same.batch_size)
        if len(sizes) > 1 and len(np.unique(same.steps)) == 1:
            means = [same.loss[same.batch_size == size].mean() for size in sizes]
            slopes[float(ratio)] = float(np.polyfit(np.log2(sizes), means, 1)[0])
    if len(slopes) < 2:
        return not_reached("there are not several batch sizes at two noise-batch ratios")
    numbers = [
        (f"loss added by doubling the batch, ratio {in_words(ratio)}", f"{slope:+.4f}")
        for ratio, slope in slopes.items()
    ]
    why = "doubling the batch to lower the loss at the least noise, and to raise it at the most"
    return judged(slopes[min(slopes)] < 0 < slopes[max(slopes)], why, numbers)


def _advantage_by_batch(evidence: Evidence) -> Judgement:
    trainings = trainings_of(evidence.search.surface if evidence.search else None)
    table = advantage_table(evidence.losses, trainings=trainings)
    numbers, factors = [], []
    for training in table.values("compute"):
        part = table.where(compute=training)
        words = f"{in_words(training)} FLOPs, {in_words(part['parameters'][0])} parameters"
        every = part["membership_advantage"]
        numbers.append((f"advantage over all batches, {words}", span(every.min(), every.max())))
        if np.isfinite(part["loss"]).any():
            same = every[part["loss"] <= _SAME * np.nanmin(part["loss"])]
            factors.append(same.max() / same.min())
            numbers.append((f"where the loss is within 5 % of the least, {words}", span(same.min(), same.max())))
    if not factors:
        why = "no loss of these trainings is inside of the grid; the advantages alone are known, and exact"
        return not_reached(why, numbers)
    why = "the advantage to differ by a fifth where losses are within 5 %"
    return judged(max(factors) >= _APART, why, numbers)


FINDINGS: dict[int, tuple[str, Callable[[TrainingSearch, Evidence], Judgement]]] = {
    1: (
        "Under privacy the best model is at least 10 times smaller than without: about 1e8 parameters at 1e22 FLOPs "
        "and 1e8 examples, instead of about 1e10 (sections 1 and 4.1).",
        lambda search, evidence: of_trainings.smaller_models(search),
    ),
    2: (
        "With a larger epsilon the best model is slightly larger, the batch smaller and the steps more; and the batch "
        "beyond which returns diminish grows like N sqrt(epsilon / T) (section 4.1).",
        lambda search, evidence: _larger_epsilon(search),
    ),
    3: (
        "Compute saturates, at a compute that grows with epsilon and with the examples (section 4.2, table 2).",
        lambda search, evidence: of_trainings.saturation(search),
    ),
    4: (
        "Tokens a parameter rise with compute; at epsilon 1 to 10 they are 1e3 to 1e5, models 10 to 50 times smaller "
        "than with 20 tokens (section 4.3).",
        lambda search, evidence: of_trainings.tokens(search),
    ),
    5: (
        "The best training at 2e18 FLOPs is as good as the best fixed one at 1e19, at 1e7 examples: 5 times less "
        "compute; and no fixed training is the best at every epsilon (section 4.4).",
        lambda search, evidence: of_trainings.baselines(search),
    ),
    6: (
        "At fixed steps, doubling one of epsilon, batch and examples alone has diminishing returns in the "
        "noise-batch ratio; epsilon and batch together, or examples and batch together, do not (section 4.5).",
        lambda search, evidence: _doubling(),
    ),
    7: (
        "The best steps are typically about 10,000 and the best batch 10,000 to 100,000; the loss is most sensitive "
        "to the batch (appendix C.2).",
        lambda search, evidence: of_trainings.typical(search),
    ),
    8: (
        "With little noise a larger physical batch is better, at a ratio of 2^-15 or more a smaller one, for the "
        "smallest model (appendix C.3).",
        lambda search, evidence: physical_batches(evidence.measurements),
    ),
    9: (
        "Without noise the best parameters and tokens grow in about equal proportion with compute, and tokens are "
        "more than 20 a parameter (appendix C.6).",
        lambda search, evidence: of_trainings.noiseless_optima(search),
    ),
    10: (
        "At equal epsilon, delta and compute the advantage of membership inference differs with the batch, where the "
        "loss is nearly the same (appendix D).",
        lambda search, evidence: _advantage_by_batch(evidence),
    ),
}
"""What was found, and what tests it, by number."""
