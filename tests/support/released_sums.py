"""What was released of whom, counted where it happens, and how little epsilon that can be; reads no ledger."""

import functools
import math
from collections import Counter
from typing import NamedTuple

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution

WIDTH = 64
"""Draws of noise that one secret may have, each a coordinate of its own."""


class Sum(NamedTuple):
    """One sum that a model is made of, of which each person added at most one clip norm."""

    people: frozenset[str]  # whose data is in it
    everybody: frozenset[str]  # whose data may be in it, where that is secret; empty where it is not
    probability: float  # with which each of `everybody` is in it
    made_of: str  # all that the sum without noise follows from
    secret: str = ""  # whose noise it has
    noise: tuple[float, ...] | None = None  # float [WIDTH], in clip norms, by draws; None where it is not secret
    count_noise: float | None = None  # on the number of clipped updates, where that is released too


def least_epsilon(person: str, sums: frozenset[Sum], delta: float) -> float:
    """Bound from below the epsilon of all that was released of one person, who adds as much as is allowed."""
    concerned = [one for one in sums if person in one.people | one.everybody]
    if any(one.noise is None for one in concerned):
        return math.inf
    precision, sampled = 0.0, Counter[tuple[float, float]]()
    # Sums without the person may share noise with those that have it.
    for secret in {one.secret for one in concerned}:
        of_secret = [one for one in sums if one.secret == secret]
        if len({(one.noise, one.made_of) for one in of_secret}) > len({one.noise for one in of_secret}):
            return math.inf  # the same noise over different sums
        precision += _precision(person, [one for one in of_secret if not one.everybody])
        for one in of_secret:
            if person in one.everybody:
                sampled[round(float(np.linalg.norm(one.noise)) * 1.0001, 3), one.probability] += 1
    if math.isinf(precision):
        return math.inf
    precision = math.floor(precision * 1000) / 1000
    if sampled:
        return _composed(tuple(sorted(sampled.items())), precision, delta)
    return float(dp_accounting.get_epsilon_gaussian(precision**-0.5, delta)) if precision else 0.0


def _precision(person: str, sums: list[Sum]) -> float:
    """Squared sensitivity of sums of one secret together, in units of their noise."""
    if not sums:
        return 0.0
    noise, taken = np.array([one.noise for one in sums]), np.array([float(person in one.people) for one in sums])
    found = 0.0
    for signs in (np.ones(len(taken)), (-1.0) ** np.arange(len(taken))):
        solved, *_ = np.linalg.lstsq(noise, signs * taken, rcond=1e-4)
        if np.abs(noise @ solved - signs * taken).max() > 1e-2:
            return math.inf
        found = max(found, float(solved @ solved))
    return found + sum(one.count_noise**-2 for one in sums if one.count_noise and person in one.people)


@functools.cache
def _composed(sampled: tuple[tuple[tuple[float, float], int], ...], precision: float, delta: float) -> float:
    """Of independent sums that a person is in with some probability, and of others, by losses that are rounded down."""
    parts = [_losses(deviation, probability).self_compose(count) for (deviation, probability), count in sampled]
    parts += [_losses(precision**-0.5, 1.0)] if precision else []
    return float(functools.reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta))


@functools.cache
def _losses(deviation: float, probability: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    return privacy_loss_distribution.from_gaussian_mechanism(
        deviation,
        pessimistic_estimate=False,
        value_discretization_interval=5e-3,
        sampling_prob=probability,
        use_connect_dots=False,
    )
