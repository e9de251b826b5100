"""How a scale-invariant model did against its standard twin, measured by the spread over seeds."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from fedlm.simulations.reporting.selection import ModelResult, Spread

Outcome = Literal["better", "worse", "undecided", "not compared"]


class Verdict(NamedTuple):
    """One score of a model against its standard twin's."""

    model: str
    twin: str
    score: str  # a field of `Scores`
    outcome: Outcome  # `undecided` where the means differ by at most one pooled standard deviation, or that is unknown
    own: Spread | None  # the model's test score; None where no seed finished
    reference: Spread | None  # its twin's
    deviations: float | None  # size of the difference in pooled standard deviations; None where that is unknown
    label: str = ""  # the privacy of both, where that differs between the runs of the comparison


def judge_twins(models: Sequence[ModelResult], score: str) -> list[Verdict]:
    """Judge every model whose standard twin is part of the comparison, at the same privacy."""
    tests = {(entry.model, entry.privacy): entry.test(score) for entry in models}
    return [
        judge(
            entry.model, entry.twin, score, own=entry.test(score), reference=tests[entry.twin, entry.privacy]
        )._replace(label=entry.label)
        for entry in models
        if entry.twin is not None
    ]


def judge(model: str, twin: str, score: str, *, own: Spread | None, reference: Spread | None) -> Verdict:
    """Judge one score of a model against its twin's: a lower perplexity, or a higher accuracy, is better."""
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
    """Pool the sample standard deviations of two sets of seeds; None where both have one seed only.

    That is the square root of the mean variance, weighted by degrees of freedom.
    """
    parts = [(part.seeds - 1, part.std) for part in (first, second) if part.std is not None]
    freedom = sum(weight for weight, _ in parts)
    return math.sqrt(sum(weight * std**2 for weight, std in parts) / freedom) if freedom else None
