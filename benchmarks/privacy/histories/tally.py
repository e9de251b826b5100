"""What was released of whom, counted where it happens, and how little epsilon that can be; reads no ledger."""

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution

WIDTH = 64
"""Draws of noise that one secret may have, each a coordinate of its own."""
_GRID = 5e-3  # of privacy losses; those of a lower bound are rounded down to it


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
    """

    people: frozenset[Hashable]
    at_risk: frozenset[Hashable]
    noise: tuple[float, ...] | None
    signature: str
    secret: str = ""
    probability: float = 1.0
    count_noise: float | None = None


@dataclass
class Tally:
    """The sums behind all parameters that were ever made, by the digest of the parameters."""

    behind: dict[str, frozenset[Entry]] = field(default_factory=dict)
    _known: dict[Entry, Entry] = field(default_factory=dict)

    def made(self, before: str, entry: Entry, after: str) -> None:
        """Count a step from parameters to others; one that is taken again alike is the same."""
        entry = self._known.setdefault(entry, entry)
        self.behind[after] = self.behind.get(after, frozenset()) | self.behind.get(before, frozenset()) | {entry}


def least_epsilon(person: Hashable, entries: Iterable[Entry], delta: float, vocabulary: float | None = None) -> float:
    """Bound from below the epsilon of all that was released of one unit.

    Every sum is taken to hold the longest contribution that is allowed, in one direction.

    Args:
      person: the unit.
      entries: all that was seen.
      delta: at which epsilon is computed.
      vocabulary: noise multiplier of a vocabulary that was made of the unit's text.
    """
    concerned = [entry for entry in entries if person in entry.people or person in entry.at_risk]
    if any(entry.noise is None for entry in concerned):
        return math.inf
    precision = 0.0 if vocabulary is None else vocabulary**-2
    # Sums without the person may share noise with those that have it.
    secrets = {entry.secret for entry in concerned}
    fixed: dict[str, list[Entry]] = {}
    sampled: Counter[tuple[float, float]] = Counter()
    for entry in entries:
        if entry.secret not in secrets or entry.noise is None:
            continue
        if entry.probability == 1.0:
            fixed.setdefault(entry.secret, []).append(entry)
        else:
            deviation = float(np.linalg.norm(entry.noise))
            if entry.count_noise is not None:
                deviation = (deviation**-2 + entry.count_noise**-2) ** -0.5
            sampled[round(deviation * 1.0001, 3), round(entry.probability, 6)] += 1
    for secret in secrets:
        if _noise_twice([entry for entry in entries if entry.secret == secret and entry.noise is not None]):
            return math.inf
    for of_secret in fixed.values():
        precision += _precision(person, of_secret)
    if math.isinf(precision):
        return math.inf
    if not sampled:
        return _gaussian(_floor(precision), delta) if precision else 0.0
    return _composed(tuple(sorted(sampled.items())), math.floor(precision * 50) / 50, delta)


def _noise_twice(entries: list[Entry]) -> bool:
    noise: dict[tuple[float, ...] | None, str] = {}
    return any(noise.setdefault(entry.noise, entry.signature) != entry.signature for entry in entries)


def _precision(person: Hashable, entries: list[Entry]) -> float:
    """Squared sensitivity of all sums of one secret together, in units of their noise."""
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
    parts = [_sampled(deviation, probability).self_compose(count) for (deviation, probability), count in sampled]
    if precision:
        parts.append(_sampled(precision**-0.5, 1.0))
    for part in parts:
        losses = part if losses is None else losses.compose(part)
    assert losses is not None
    # Rounding in the Fourier transform is far below every delta of these histories.
    return float(losses.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=256)
def _sampled(deviation: float, probability: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    return privacy_loss_distribution.from_gaussian_mechanism(
        deviation,
        pessimistic_estimate=False,
        value_discretization_interval=_GRID,
        sampling_prob=probability,
        use_connect_dots=False,
    )
