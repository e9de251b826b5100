"""What was released of whom, counted where it happens, and how little epsilon that can be; reads no ledger."""

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import dp_accounting
import numpy as np
import scipy.special
from dp_accounting.pld import privacy_loss_distribution

WIDTH = 64
"""Draws of noise that one secret may have, each a coordinate of its own."""
_GRID = 5e-3  # of privacy losses; those of a lower bound are rounded down to it


class Trial(NamedTuple):
    """One of the runs of a private selection."""

    selection: str
    number: int
    distribution: str  # of how many there are: `poisson` or `geometric`
    expected: float


@dataclass(frozen=True)
class Entry:
    """One sum that a model is made of.

    Attributes:
      people: whose data is in it.
      at_risk: whose data may be in it where `probability` is below 1.
      noise: float [WIDTH], in clip norms, by draws of `secret`; None where it has none that is secret.
      signature: of all that the sum without noise follows from.
      secret: whose noise it has.
      probability: with which each of those at risk is in it, in secret.
      count_noise: standard deviation of the noise on the count of clipped updates, in units of what one adds; None
        where that is not released.
      trial: of a private selection, that the sum is of; None of any other.
    """

    people: frozenset[Hashable]
    at_risk: frozenset[Hashable]
    noise: tuple[float, ...] | None
    signature: str
    secret: str = ""
    probability: float = 1.0
    count_noise: float | None = None
    trial: Trial | None = None


@dataclass
class Tally:
    """What is known of all runs together.

    Attributes:
      behind: the sums behind all parameters that were ever made, by the digest of the parameters.
      chosen: by private selections, the trials that they have chosen.
    """

    behind: dict[str, frozenset[Entry]] = field(default_factory=dict)
    chosen: dict[str, set[int]] = field(default_factory=dict)
    _known: dict[Entry, Entry] = field(default_factory=dict)

    def made(self, before: str, entry: Entry, after: str) -> None:
        """Count a step from parameters to others; one that is taken again alike is the same."""
        entry = self._known.setdefault(entry, entry)
        self.behind[after] = self.behind.get(after, frozenset()) | self.behind.get(before, frozenset()) | {entry}


def least_epsilon(
    person: Hashable,
    entries: Iterable[Entry],
    delta: float,
    vocabulary: float | None = None,
    chosen: Mapping[str, set[int]] | None = None,
) -> float:
    """Bound from below the epsilon of all that was released of one unit.

    Every sum is taken to hold the longest contribution that is allowed, in one direction.

    Args:
      person: the unit.
      entries: all that was seen.
      delta: at which epsilon is computed.
      vocabulary: noise multiplier of a vocabulary that was made of the unit's text.
      chosen: the trials that private selections have chosen.
    """
    entries = list(entries)
    concerned = [entry for entry in entries if person in entry.people or person in entry.at_risk]
    if any(entry.noise is None for entry in concerned):
        return math.inf
    trials = {entry.trial for entry in concerned if entry.trial is not None}
    if any((chosen or {}).get(one.selection) != {one.number} for one in trials):
        # A run is seen that is not the best one.
        return math.inf
    # Chosen by chance a run is one like any other, where there is one at all.
    given = delta
    for one in trials:
        given /= -math.expm1(-one.expected) if one.distribution == "poisson" else 1.0
    precision = 0.0 if vocabulary is None else vocabulary**-2
    # Sums without the person may share noise with those that have it.
    secrets = {entry.secret for entry in concerned}
    sampled: Counter[tuple[float, float]] = Counter()
    of_choices = 0.0
    for secret in secrets:
        of_secret = [entry for entry in entries if entry.secret == secret and entry.noise is not None]
        if _noise_twice(of_secret):
            return math.inf
        precision += _precision(person, [entry for entry in of_secret if entry.probability == 1.0])
        releases = _sampled_releases(person, of_secret)
        if releases is None:
            return math.inf
        sampled += releases
    if math.isinf(precision):
        return math.inf
    for one in trials:
        of_trial = {entry.secret for entry in concerned if entry.trial == one}
        fixed = [entry for entry in entries if entry.secret in of_trial and entry.probability == 1.0]
        parts = [_precision(person, [entry for entry in fixed if entry.secret == secret]) for secret in of_trial]
        of_choices = max(of_choices, _best(_floor(sum(parts)), one.distribution, one.expected, delta))
    if given >= 1:
        return of_choices
    if sampled:
        composed = _composed(tuple(sorted(sampled.items())), math.floor(precision * 50) / 50, given)
    else:
        composed = _gaussian(_floor(precision), given) if precision else 0.0
    return max(of_choices, composed)


def _sampled_releases(person: Hashable, entries: list[Entry]) -> Counter[tuple[float, float]] | None:
    """Count the noise and probability of sums of one secret that a unit may be in; None where some have no noise.

    What a sum moves that no other of these sums does is a Gaussian mechanism on its own, whose noise is independent of
    those of the others.
    """
    noises = list(dict.fromkeys(entry.noise for entry in entries if entry.noise is not None))
    found: Counter[tuple[float, float]] = Counter()
    own = [entry for entry in entries if entry.probability < 1 and (person in entry.at_risk or person in entry.people)]
    if not own:
        return found
    rows = np.array(noises)
    covariance = rows @ rows.T
    if np.linalg.cond(covariance) > 1e8:
        return None
    places = sorted({noises.index(entry.noise) for entry in own if entry.noise is not None})
    moved = np.linalg.inv(covariance)[np.ix_(places, places)]
    deviations = np.sqrt(np.diag(np.linalg.inv(moved)))
    for entry in own:
        assert entry.noise is not None
        deviation = float(deviations[places.index(noises.index(entry.noise))])
        if entry.count_noise is not None:
            deviation = (deviation**-2 + entry.count_noise**-2) ** -0.5
        found[round(deviation * 1.0001, 3), round(entry.probability, 6)] += 1
    return found


@functools.cache
def _best(precision: float, distribution: str, expected: float, delta: float) -> float:
    """Bound from below the epsilon of the best of a random number of runs, by what one threshold tells.

    Each run is a Gaussian mechanism, and its score is what it says of the unit, which is in all of them or in none.

    Args:
      precision: squared sensitivity of one run in units of its noise.
      distribution: of the number of runs.
      expected: mean of that.
      delta: at which epsilon is computed.
    """
    if not precision:
        return 0.0
    thresholds = np.linspace(-8.0, 8.0 + precision**0.5, 4000)
    with_unit = _above(scipy.special.ndtr(precision**0.5 - thresholds), distribution, expected)
    without = _above(scipy.special.ndtr(-thresholds), distribution, expected)
    seen = with_unit > delta
    return max(0.0, float(np.log((with_unit[seen] - delta) / without[seen]).max(initial=0.0)))


def _above(one: np.ndarray, distribution: str, expected: float) -> np.ndarray:
    """Compute how likely the best is above a threshold, where one run is with some probability."""
    if distribution == "poisson":
        return -np.expm1(-expected * one)
    return one / (1 / expected + (1 - 1 / expected) * one)


def _noise_twice(entries: list[Entry]) -> bool:
    noise: dict[tuple[float, ...] | None, str] = {}
    return any(noise.setdefault(entry.noise, entry.signature) != entry.signature for entry in entries)


def _precision(person: Hashable, entries: list[Entry]) -> float:
    """Squared sensitivity of all sums of one secret together, in units of their noise."""
    if not entries:
        return 0.0
    noise = np.array([entry.noise for entry in entries])
    taken = np.array([float(person in entry.people) for entry in entries])
    found = 0.0
    for signs in (np.ones(len(taken)), (-1.0) ** np.arange(len(taken))):
        solved, *_ = np.linalg.lstsq(noise, signs * taken, rcond=1e-4)
        if np.abs(noise @ solved - signs * taken).max() > 1e-2:
            return math.inf
        found = max(found, float(solved @ solved))
    return found + sum(entry.count_noise**-2 for entry in entries if person in entry.people and entry.count_noise)


def _floor(precision: float) -> float:
    """Round down, so that few numbers occur."""
    return math.floor(precision * 1000) / 1000 if precision < 100 else math.floor(precision)


@functools.cache
def _gaussian(precision: float, delta: float) -> float:
    return float(dp_accounting.get_epsilon_gaussian(precision**-0.5, delta)) if precision else 0.0


@functools.cache
def _composed(sampled: tuple[tuple[tuple[float, float], int], ...], precision: float, delta: float) -> float:
    losses = None
    parts = [_sampled(deviation, probability, count) for (deviation, probability), count in sampled]
    if precision:
        parts.append(_sampled(precision**-0.5, 1.0, 1))
    for part in parts:
        losses = part if losses is None else losses.compose(part)
    assert losses is not None
    # Rounding in the Fourier transform is far below every delta of these histories.
    return float(losses.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=1024)
def _sampled(deviation: float, probability: float, count: int) -> privacy_loss_distribution.PrivacyLossDistribution:
    if count > 1:
        return _sampled(deviation, probability, 1).self_compose(count)
    return privacy_loss_distribution.from_gaussian_mechanism(
        deviation,
        pessimistic_estimate=False,
        value_discretization_interval=_GRID,
        sampling_prob=probability,
        use_connect_dots=False,
    )
