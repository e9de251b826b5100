"""The gap between a scale-invariant model and its twin at every point of an axis, and a line through it."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import t

from benchmarks.architectures.axes.points import EVALUATE_EVERY, PAIRS, SEEDS, Axis, Point, Run
from benchmarks.architectures.axes.records import Records
from benchmarks.architectures.axes.selection import seeds_of, select

CONFIDENCE = 0.95
SMOOTHED = 4 * EVALUATE_EVERY
"""Rounds over which curves are averaged."""
AHEAD, BEHIND, UNDECIDED, MISSING, ONE_SEED = "ahead", "behind", "not decided", "missing", "one seed"


class Spread(NamedTuple):
    """Numbers of several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds; 0 of one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    @property
    def half_width(self) -> float:
        """Half of the mean's interval of `CONFIDENCE`, by Student's distribution; infinite of one seed."""
        number = len(self.values)
        if number < 2:
            return math.inf
        return float(t.ppf((1 + CONFIDENCE) / 2, number - 1)) * self.deviation / math.sqrt(number)


@dataclass(frozen=True)
class Score:
    """A model at a point, at its selected rates; losses and accuracies are means over the point's last rounds.

    Attributes:
      rates: client's and server's.
      at_edge: whether one of them is the least or the largest of those that there were.
      test: test losses, by seed; infinite where a training diverged.
      heldout: the same of held-out clients.
      accuracy: for test clients, by seed.
    """

    rates: tuple[float, float]
    at_edge: bool
    test: dict[int, float]
    heldout: dict[int, float]
    accuracy: dict[int, float]

    def perplexity(self, kind: str = "test") -> Spread | None:
        """Give perplexities of the seeds that did not diverge; None where there is none."""
        values = tuple(math.exp(loss) for loss in getattr(self, kind).values() if loss < math.inf)
        return Spread(values) if values else None

    @property
    def diverged(self) -> int:
        """How many seeds diverged."""
        return sum(loss == math.inf for loss in self.test.values())


def score(records: Records, point: Point, model: str) -> Score | None:
    """Give a model's scores of the seeds that have ended; None where rates are not selected, or nothing has."""
    runs = [run for run in seeds_of(records, point, model) if records.has(run, point.rounds)]
    if not runs:
        return None
    client, server = runs[0].client_rate, runs[0].server_rate
    return Score(
        (client, server),
        _is_edge(client, point.client_rates) or _is_edge(server, point.server_rates),
        {run.seed: records.test_loss(run, point.rounds) for run in runs},
        {run.seed: records.heldout_loss(run, point.rounds) for run in runs},
        {run.seed: records.test_accuracy(run, point.rounds) for run in runs},
    )


def _is_edge(rate: float, rates: tuple[float, ...]) -> bool:
    return len(rates) > 1 and rate in (min(rates), max(rates))


def left_at(records: Records, point: Point, model: str) -> bool:
    """Say whether trainings of a model at a point are missing."""
    selection = select(records, point, model)
    runs = seeds_of(records, point, model)
    return not selection.decided or any(not records.has(run, point.rounds) for run in runs)


class Gap(NamedTuple):
    """By how much a model's perplexity is above its twin's, relative to it, of the same seeds.

    Attributes:
      test: of test clients.
      heldout: of held-out clients, by which rates are selected with the first seed. A few clients have most of the text
        that is scored, others among these than among test clients.
    """

    test: Spread
    heldout: Spread

    @property
    def verdict(self) -> str:
        """Whether the model is ahead: whether both means' intervals are on the same side of 0."""
        number = len(self.test.values)
        if number < len(SEEDS):
            return ONE_SEED if number == 1 else MISSING
        sides = {side(spread.mean, spread.half_width) for spread in self}
        return sides.pop() if len(sides) == 1 else UNDECIDED


def side(value: float, half_width: float) -> str:
    """Say on which side of 0 an interval is, `AHEAD` below it."""
    if value + half_width < 0:
        return AHEAD
    return BEHIND if value - half_width > 0 else UNDECIDED


def gaps_by_seed(records: Records, point: Point, model: str, twin: str, kind: str = "test") -> dict[int, float]:
    """Give a model's gaps to its twin on test or held-out clients, for the seeds that have both: the same seed has the
    same cohorts."""
    one, other = score(records, point, model), score(records, point, twin)
    if one is None or other is None:
        return {}
    return {
        seed: math.expm1(getattr(one, kind)[seed] - getattr(other, kind)[seed])
        for seed in point.seeds
        if max(one.test.get(seed, math.inf), other.test.get(seed, math.inf)) < math.inf
    }


def gap(records: Records, point: Point, model: str, twin: str) -> Gap | None:
    """Give the gaps of all seeds; None where no seed has both models."""
    test, heldout = (gaps_by_seed(records, point, model, twin, kind) for kind in ("test", "heldout"))
    return Gap(Spread(tuple(test.values())), Spread(tuple(heldout.values()))) if test else None


def gap_at_rates(records: Records, point: Point, model: str, twin: str, rates: tuple[float, float]) -> Gap | None:
    """Give the gaps at given client and server rates for both models, of the seeds that have both; None of none."""
    pairs = [tuple(Run(point.setting, name, *rates, seed) for name in (model, twin)) for seed in point.seeds]
    ended = [pair for pair in pairs if all(records.has(run, point.rounds) for run in pair)]
    losses = [
        [[loss(run, point.rounds) for run in pair] for pair in ended]
        for loss in (records.test_loss, records.heldout_loss)
    ]
    if not ended or any(math.inf in pair for kind in losses for pair in kind):
        return None
    return Gap(*(Spread(tuple(math.expm1(one - other) for one, other in kind)) for kind in losses))


class Line(NamedTuple):
    """A straight line through gaps against the logarithm of an axis' value, by least squares.

    Attributes:
      slope: by doubling.
      slope_half_width: half of its interval of `CONFIDENCE`.
      at: where it was asked for.
      value: there.
      half_width: half of the line's interval there: of the line, with what points differ from it, and not of the
        assumption that it is straight so far beyond them.
    """

    slope: float
    slope_half_width: float
    at: float
    value: float
    half_width: float

    @property
    def verdict(self) -> str:
        """On which side of 0 the interval is."""
        return side(self.value, self.half_width)


def gaps_along(records: Records, axis: Axis, model: str, twin: str) -> list[tuple[float, float]]:
    """List an axis' values that are numbers, with the means of the gaps over the seeds that all of these have."""
    found = [(point.value, gaps_by_seed(records, point, model, twin)) for point in axis.points]
    return means_along([(value, gaps) for value, gaps in found if not isinstance(value, str)])


def means_along(found: list[tuple[float, dict[int, float]]]) -> list[tuple[float, float]]:
    """Average what each value of an axis has by seed over the seeds that all of those have that have any."""
    known = [(value, by_seed) for value, by_seed in found if by_seed]
    seeds = set.intersection(*(set(by_seed) for _, by_seed in known)) if known else set()
    return [(value, float(np.mean([by_seed[seed] for seed in seeds]))) for value, by_seed in known] if seeds else []


def line_through(gaps: list[tuple[float, float]], at: float) -> Line | None:
    """Fit a line to one gap a value; None where there are fewer than three values.

    The seeds of a value count as one: how they differ says nothing of how straight the line is.
    """
    if len(gaps) < 3:
        return None
    x, y = np.array([(math.log2(value), one) for value, one in gaps]).T
    centred = x - x.mean()
    scatter = float(centred @ centred)
    slope = float(centred @ y) / scatter
    residuals = y - y.mean() - slope * centred
    freedom = len(y) - 2
    deviation = math.sqrt(float(residuals @ residuals) / freedom)
    quantile = float(t.ppf((1 + CONFIDENCE) / 2, freedom))
    away = math.log2(at) - float(x.mean())
    return Line(
        slope,
        quantile * deviation / math.sqrt(scatter),
        at,
        float(y.mean()) + slope * away,
        quantile * deviation * math.sqrt(1 / len(y) + away**2 / scatter),
    )


def pairs_of(axis: Axis) -> list[tuple[str, str]]:
    """List the pairs of scale-invariant models and twins among an axis' models."""
    return [pair for pair in PAIRS if set(pair) <= set(axis.models)]


def mean_curve(records: Records, point: Point, model: str) -> tuple[list[int], list[float]]:
    """Average held-out losses over the seeds at the selected rates and over the last `SMOOTHED` rounds: rounds and
    losses, empty where there are none."""
    runs = [run for run in seeds_of(records, point, model) if records.has(run, point.rounds)]
    curves = [
        {row[0]: row[1] for row in records.runs[run]["heldout"] if row[0] <= point.rounds and row[1] is not None}
        for run in runs
    ]
    rounds = sorted(set.intersection(*map(set, curves))) if curves else []
    means = {done: float(np.mean([curve[done] for curve in curves])) for done in rounds}
    ends = [done for done in rounds if done >= SMOOTHED]
    return ends, [float(np.mean([means[one] for one in rounds if done - SMOOTHED < one <= done])) for done in ends]


def is_complete(records: Records, axis: Axis) -> bool:
    """Say whether an axis has all of its trainings."""
    return not any(left_at(records, point, model) for point in axis.points for model in axis.models)
