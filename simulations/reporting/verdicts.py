"""How a scale-invariant model did against its standard twin, measured by the spread over seeds."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from fedlm.simulations.reporting.selection import ModelResult, Spread

Outcome = Literal["better", "worse", "undecided", "not compared"]


class Verdict(NamedTuple):
    """One score of a model against its standard twin's.

    Attributes:
      model: the model.
      twin: its standard twin.
      score: a field of `Scores`.
      outcome: `undecided` where the means differ by at most one pooled standard deviation, or the spread is unknown.
      own: the model's test score; None where no seed finished.
      reference: its twin's.
      deviations: size of the difference in pooled standard deviations; None where that is unknown.
      label: the privacy of both, where that differs between the runs of the comparison.
    """

    model: str
    twin: str
    score: str
    outcome: Outcome
    own: Spread | None
    reference: Spread | None
    deviations: float | None
    label: str = ""


def judge_twins(models: Sequence[ModelResult], score: str) -> list[Verdict]:
    """Judge every model whose standard twin is part of the comparison, at the same privacy.

    Args:
      models: all models.
      score: `perplexity` or an accuracy.

    Returns:
      One verdict a pair and privacy.
    """
    tests = {(entry.model, entry.privacy): entry.test(score) for entry in models}
    return [
        judge(entry.model, entry.twin, score, entry.test(score), tests[entry.twin, entry.privacy])._replace(
            label=entry.label
        )
        for entry in models
        if entry.twin is not None
    ]


def judge(model: str, twin: str, score: str, own: Spread | None, reference: Spread | None) -> Verdict:
    """Judge one score of a model against its twin's.

    Args:
      model: the model.
      twin: its standard twin.
      score: `perplexity` (lower is better) or an accuracy (higher is better).
      own: the model's test score.
      reference: its twin's.

    Returns:
      The verdict.
    """
    if own is None or reference is None:
        return Verdict(model, twin, score, "not compared", own, reference, None)
    difference = own.mean - reference.mean
    std = pooled_std(own, reference)
    if std is None or abs(difference) <= std:
        deviations = abs(difference) / std if std else None
        return Verdict(model, twin, score, "undecided", own, reference, deviations)
    gains = difference < 0 if score == "perplexity" else difference > 0
    deviations = abs(difference) / std if std else math.inf
    return Verdict(model, twin, score, "better" if gains else "worse", own, reference, deviations)


def pooled_std(first: Spread, second: Spread) -> float | None:
    """Pool the sample standard deviations of two sets of seeds.

    Args:
      first: of one model.
      second: of the other.

    Returns:
      The square root of the mean variance, weighted by degrees of freedom; None where both have one seed only.
    """
    parts = [(part.seeds - 1, part.std) for part in (first, second) if part.std is not None]
    freedom = sum(weight for weight, _ in parts)
    return math.sqrt(sum(weight * std**2 for weight, std in parts) / freedom) if freedom else None
