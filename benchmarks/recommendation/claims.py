"""What the paper claims, and what the trainings say of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

from benchmarks.recommendation.grid import Point, Results, Scale, batch_points, points_of
from benchmarks.recommendation.models import MODELS, VARIANTS
from fedlm.fl_core.privacy.composition import GaussianEvent
from fedlm.fl_core.privacy.number_of_trials import TrialsLaw
from fedlm.fl_core.privacy.private_selection import SelectionEvent, composed_above

HOLDS, FAILS, UNDECIDED, MISSING = "holds", "does not hold", "not decided", "not measured"
PAPER_GAINS = {5.0: (20, 22), 8.0: (28, 34), 10.0: (27, 31)}
"""Of DPFormer over the Transformer with tied items by epsilon, NDCG@10 and HIT@10 in per cent (table 2)."""


class Spread(NamedTuple):
    """A score of several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds; 0 of one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class Verdict:
    """A claim, and what was found.

    Attributes:
      claim: in a sentence.
      paper: what the paper has.
      found: numbers.
      verdict: `HOLDS`, `FAILS`, `UNDECIDED` or `MISSING`, and where it does not hold everywhere, how often.
    """

    claim: str
    paper: str
    found: str
    verdict: str


@dataclass(frozen=True)
class Evidence:
    """What was measured, by variant and epsilon."""

    results: Results
    scale: Scale

    def cells(self, variant: str, epsilon: float | None) -> list[dict]:
        """Give the records of a variant's trainings at its learning rate that have ended well, one a seed."""
        found = [self.results.cells.get(point) for point in points_of(self.results, self.scale, variant, epsilon)]
        return [cell for cell in found if cell is not None and cell["test"] is not None]

    def spread(
        self, variant: str, epsilon: float | None, metric: str = "ndcg@10", group: int | None = None
    ) -> Spread | None:
        """Give a variant's test scores over seeds, of all items or of those of a popularity group; None where there is
        none."""
        values = []
        for cell in self.cells(variant, epsilon):
            found = cell["test"] if group is None else cell["test"]["by_popularity"][group]
            values.append(found["scores"][metric]["value"])
        return Spread(tuple(values)) if values and None not in values else None

    def popularity(self, metric: str = "ndcg@10", group: int | None = None) -> float:
        """Give the test score of recommending what is popular."""
        found = self.results.about["data"]["popularity"]["test"]
        return (found if group is None else found["by_popularity"][group])["scores"][metric]["value"]

    def gain(self, over: str, variant: str, epsilon: float, metric: str = "ndcg@10") -> Spread | None:
        """Give how much a variant's score is above another's, by seed, relative to it; None where a seed is missing."""
        one, other = self.spread(variant, epsilon, metric), self.spread(over, epsilon, metric)
        if one is None or other is None or len(one.values) != len(other.values) or 0 in other.values:
            return None
        return Spread(tuple(a / b - 1 for a, b in zip(one.values, other.values, strict=True)))


class Pair(NamedTuple):
    """Two variants that differ in one thing, whose trainings of one seed begin alike.

    Attributes:
      one: the variant that may be better.
      other: the variant that it is compared with.
      gains: by epsilon, how much the score of the one is above that of the other, relative to it, by seed.
    """

    one: str
    other: str
    gains: dict[float, Spread]


PAIRS = (
    ("dpformer", "tied"),
    ("placebo", "tied"),
    ("dpformer", "placebo"),
    ("private_relevance", "tied"),
    ("dpformer_untied", "untied"),
)


def pairs(evidence: Evidence) -> list[Pair]:
    """Compare variants seed by seed, where both were measured."""
    found = []
    for one, other in PAIRS:
        gains = {epsilon: evidence.gain(other, one, epsilon) for epsilon in evidence.scale.epsilons}
        found.append(Pair(one, other, {epsilon: gain for epsilon, gain in gains.items() if gain is not None}))
    return found


def above(one: Spread | None, other: Spread | None, seeds: int) -> str:
    """Say whether scores are above others: of all seeds, or of none."""
    if one is None or other is None or min(len(one.values), len(other.values)) < seeds:
        return MISSING
    if min(one.values) > max(other.values):
        return HOLDS
    return FAILS if max(one.values) < min(other.values) else UNDECIDED


def together(verdicts: Sequence[str]) -> str:
    """Sum verdicts on parts of a claim up."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return ", ".join(f"{kind} {verdicts.count(kind)} of {len(verdicts)}" for kind in dict.fromkeys(verdicts))


def verdicts(evidence: Evidence) -> list[Verdict]:
    """Judge all claims."""
    scale = evidence.scale
    gains = "; ".join(f"{eps:g}: +{n} %, +{h} %" for eps, (n, h) in PAPER_GAINS.items())
    found = [
        _everywhere(
            evidence, "Re-attention helps the tied Transformer", f"NDCG, HIT by epsilon: {gains}", "dpformer", "tied"
        ),
        _everywhere(evidence, "The same by HIT@10", "as above", "dpformer", "tied", "hit@10"),
        _best(evidence),
        _everywhere(
            evidence, "Sharing items between reading and scoring helps", "figure 2, table 2: yes", "tied", "untied"
        ),
        _everywhere(evidence, "Sharing is better than half the width without", "figure 2: yes", "tied", "untied_half"),
        _everywhere(evidence, "The tied Transformer is better than a GRU", "table 2: yes", "tied", "gru"),
        _everywhere(evidence, "The tied Transformer is better than an LSTM", "table 2: yes", "tied", "lstm"),
        _growing_gain(evidence),
        _smoother(evidence),
        _most_of_grid(evidence),
        _everywhere(
            evidence,
            "It is the right relevances that help, not a correction as such",
            "no such control",
            "dpformer",
            "placebo",
        ),
        _everywhere(
            evidence, "Re-attention helps without sharing, too", "no such control", "dpformer_untied", "untied"
        ),
        _everywhere(
            evidence,
            "It helps when counting relevances is part of epsilon",
            "counted without privacy",
            "private_relevance",
            "tied",
        ),
        _everywhere(
            evidence,
            "Re-attention helps with items of the least popular third",
            "no such control",
            "dpformer",
            "tied",
            "hit@10",
            2,
        ),
        _popularity(evidence, "Without privacy models are better than popularity", [None]),
        _popularity(evidence, "Private models are better than popularity", scale.epsilons),
    ]
    return found


def _everywhere(
    evidence: Evidence,
    claim: str,
    paper: str,
    one: str,
    other: str,
    metric: str = "ndcg@10",
    group: int | None = None,
) -> Verdict:
    parts, judged = [], []
    for epsilon in evidence.scale.epsilons:
        a, b = (evidence.spread(variant, epsilon, metric, group) for variant in (one, other))
        judged.append(above(a, b, len(evidence.scale.seeds)))
        parts.append(f"{epsilon:g}: {_percent(a)} against {_percent(b)}")
    return Verdict(claim, paper, "; ".join(parts), together(judged))


def _best(evidence: Evidence) -> Verdict:
    parts, judged = [], []
    for epsilon in evidence.scale.epsilons:
        spreads = {variant: evidence.spread(variant, epsilon) for variant in MODELS}
        known = {variant: spread for variant, spread in spreads.items() if spread is not None}
        others = [above(spreads["dpformer"], spreads[variant], len(evidence.scale.seeds)) for variant in MODELS[:-1]]
        judged.append(next((kind for kind in (MISSING, FAILS, UNDECIDED) if kind in others), HOLDS))
        best = max(known, key=lambda variant: known[variant].mean) if known else None
        parts.append(f"{epsilon:g}: {'nothing' if best is None else VARIANTS[best].title} is best")
    return Verdict("DPFormer is the best of the five", "table 2: at every epsilon", "; ".join(parts), together(judged))


def _growing_gain(evidence: Evidence) -> Verdict:
    gains = {epsilon: evidence.gain("tied", "dpformer", epsilon) for epsilon in evidence.scale.epsilons}
    least, most = min(gains), max(gains)
    return Verdict(
        "The relative gain grows as epsilon falls",
        "on MovieLens; on Amazon Games 20, 28, 27 %",
        "; ".join(f"{epsilon:g}: {_percent(gain, signed=True)}" for epsilon, gain in gains.items()),
        above(gains[least], gains[most], len(evidence.scale.seeds)),
    )


def _smoother(evidence: Evidence) -> Verdict:
    def unevenness(variant: str, epsilon: float) -> Spread | None:
        curves = [np.array(cell["curve"])[:, 2] for cell in evidence.cells(variant, epsilon) if len(cell["curve"]) > 1]
        # What is lost between one evaluation and the next, of the best score.
        return (
            Spread(tuple(float(np.maximum(-np.diff(one), 0).sum() / one.max()) for one in curves)) if curves else None
        )

    parts, judged = [], []
    for epsilon in evidence.scale.epsilons:
        own, others = unevenness("dpformer", epsilon), unevenness("tied", epsilon)
        judged.append(above(others, own, len(evidence.scale.seeds)))
        parts.append(f"{epsilon:g}: {_percent(own)} against {_percent(others)} lost on the way")
    return Verdict("Scores grow more evenly with re-attention", "figure 6: yes", "; ".join(parts), together(judged))


def _most_of_grid(evidence: Evidence) -> Verdict:
    differences = list(grid_gains(evidence).values())
    better = sum(one > 0 for one in differences)
    verdict = MISSING
    if len(differences) == len(batch_points(evidence.scale)) // 2:
        # Of one seed: a sign test of 5 %, one-sided.
        verdict = HOLDS if _unlikely(better, len(differences)) else UNDECIDED
        verdict = FAILS if _unlikely(len(differences) - better, len(differences)) else verdict
    found = f"{better} of {len(differences)}, one seed"
    return Verdict("Re-attention is better at most rates and batch sizes", "figure 7: most", found, verdict)


def _unlikely(better: int, number: int) -> bool:
    return bool(binomtest(better, number, alternative="greater").pvalue < 0.05) if number else False


def grid_gains(evidence: Evidence) -> dict[tuple[int, float], float]:
    """Give by batch size and rate how much DPFormer is above the tied Transformer, relative to it, where both are
    known."""
    scores: dict[tuple[int, float], dict[str, float]] = {}
    for point in batch_points(evidence.scale):
        score = evidence.results.score(point)
        if score is not None:
            scores.setdefault((point.batch_size, point.rate), {})[point.variant] = score
    return {
        place: both["dpformer"] / both["tied"] - 1
        for place, both in sorted(scores.items())
        if len(both) == 2 and both["tied"]
    }


def _popularity(evidence: Evidence, claim: str, epsilons: Sequence[float | None]) -> Verdict:
    popularity, parts, judged = evidence.popularity(), [], []
    seeds = len(evidence.scale.seeds)
    for epsilon in epsilons:
        known = 0
        for variant in MODELS:
            if epsilon is None and VARIANTS[variant].relevance:
                continue
            spread = evidence.spread(variant, epsilon)
            judged.append(above(spread, Spread((popularity,) * seeds), seeds))
            known += judged[-1] == HOLDS
        parts.append(f"{'' if epsilon is None else f'{epsilon:g}: '}{known} above {100 * popularity:.2f}")
    return Verdict(claim, "no such control", "; ".join(parts), together(judged))


def _percent(spread: Spread | None, signed: bool = False) -> str:
    if spread is None:
        return "?"
    sign = "+" if signed else ""
    return f"{100 * spread.mean:{sign}.2f} ± {100 * spread.deviation:.2f}"


def selection_costs(evidence: Evidence) -> dict[float, float]:
    """Bound by epsilon what a model would have spent whose learning rate is the best of a random number of trials, with
    as many on average as there were rates (Papernot and Steinke 2022), each the training that was measured; in place of
    its own epsilon. The law is the truncated negative binomial one with eta 1."""
    scale, users = evidence.scale, evidence.results.about["data"]["users"]
    law = TrialsLaw("truncated_negative_binomial", float(len(scale.rates)), 1.0)
    found = {}
    for epsilon in scale.epsilons:
        cells = evidence.cells("tied", epsilon)
        if cells and cells[0]["noise_multiplier"]:
            trial = GaussianEvent(cells[0]["noise_multiplier"], cells[0]["steps"], scale.batch_size / users)
            found[epsilon] = composed_above([SelectionEvent((trial,), law)], scale.delta)
    return found


def not_yet(points: Sequence[Point], results: Results) -> int:
    """Count points without a result."""
    return sum(point not in results.cells for point in points)
