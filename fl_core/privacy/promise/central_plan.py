"""The plan of central training. Poisson sampling draws its batches: DP-SGD, or banded noise with cyclic
sampling (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization: A unified approach to private training",
algorithm 2), where units are in as many parts as the noise has bands, and parts take turns. Or each unit is in one of
many bins that take turns (Choquette-Choo et al. 2024, "Near-exact privacy amplification for matrix mechanisms"). Or no
unit is drawn again within as many steps as the noise has bands (Dong and Ganesh 2026, "Privacy amplification for BandMF
via b-min-sep subsampling")."""

import functools
import math

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.mechanisms.banded import BandedSettings
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation.limits import Participation
from fedlm.fl_core.privacy.participation.sampling import (
    BallsInBinsParticipation,
    ExamplesParticipation,
    MinSeparationParticipation,
    PoissonParticipation,
    TruncatedPoissonParticipation,
)
from fedlm.fl_core.privacy.promise.plan import Adjacency, PrivacyPlan

EXAMPLE = "example: one training example, in all steps"


def central_plan(
    units: int,
    batch_size: int,
    steps: int,
    noise_multiplier: float,
    *,
    truncated_batch_size: int | None = None,
    in_bins: bool = False,
    min_separation: bool = False,
    adjacency: Adjacency | None = None,
    unit: str = EXAMPLE,
    bands: int | None = None,
    coefficients: tuple[float, ...] | None = None,
    examples_per_user: int | None = None,
) -> PrivacyPlan:
    """Plan central training, whose rounds are steps.

    Args:
      units: N, how many units there are; how many examples, where these are sampled one by one.
      batch_size: B, units of a batch on average: each is in it with probability B / N, or b B / N where it is the turn
        of one of b parts.
      steps: T.
      noise_multiplier: standard deviation of the noise on a step's sum, in clip norms; with bands, of the independent
        draws that it is made of, the columns of whose strategy have norm 1.
      truncated_batch_size: a batch of more loses some at random; None where batches are taken whole.
      in_bins: whether each unit is in one of N / B bins, rounded down to a multiple of the bands, and these are the
        batches.
      min_separation: whether units are drawn among those that were in none of the b - 1 batches before.
      adjacency: which data sets are neighbours.
      unit: whose presence is hidden.
      bands: b, of banded noise, and parts of the units; None for noise that is independent in each step.
      coefficients: of the banded strategy; the best where None.
      examples_per_user: K, the most examples of a unit, where each is sampled, and clipped, by itself; None where all
        of a unit are together.

    Raises:
      ConfigurationError: a number is out of range.
    """
    for name, value in (("units", units), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigurationError(f"{setting(name)} is {value}, but must be at least 1")
    if batch_size > units:
        raise ConfigurationError(f"{setting('batch_size')} is {batch_size}, but there are only {units} to draw from")
    if bands is not None and not 1 <= bands <= most_bands(units, batch_size, steps):
        raise ConfigurationError(
            f"{setting('bands')} is {bands}, but must lie between 1 and {most_bands(units, batch_size, steps)}: no "
            f"more than steps, and than batches of {batch_size} in {units} units"
        )
    if examples_per_user is not None:
        others = {
            "bands": bands,
            "truncated_batch_size": truncated_batch_size,
            "in_bins": in_bins or None,
            "min_separation": min_separation or None,
        }
        for name, given in others.items():
            if given is not None:
                raise ConfigurationError(f"{setting(name)} is not accounted where examples are sampled; leave it out")
        by_examples = ExamplesParticipation(batch_size / units, examples_per_user)
        return PrivacyPlan("gaussian", steps, noise_multiplier, by_examples, unit=unit, adjacency=adjacency)
    cycle = bands or 1
    participation: Participation = PoissonParticipation(batch_size * cycle / units, cycle=cycle)
    if (in_bins or min_separation) and truncated_batch_size is not None:
        raise ConfigurationError(f"{setting('truncated_batch_size')} is only for Poisson sampling; leave it out")
    if in_bins:
        participation = BallsInBinsParticipation(units // batch_size // cycle * cycle)
    if min_separation:
        if bands is None:
            raise ConfigurationError(
                f"a min-separation in sampling is that of bands; give {setting('mechanism', 'banded')}"
            )
        participation = MinSeparationParticipation(batch_size / (units - (bands - 1) * batch_size), bands)
    if truncated_batch_size is not None:
        if truncated_batch_size < batch_size:
            raise ConfigurationError(
                f"{setting('truncated_batch_size')} is {truncated_batch_size}, but must not be below "
                f"{setting('batch_size')}, {batch_size}"
            )
        participation = TruncatedPoissonParticipation(
            batch_size * cycle / units, slots_of_part(units, cycle), truncated_batch_size, cycle=cycle
        )
    if bands is None:
        return PrivacyPlan("gaussian", steps, noise_multiplier, participation, unit=unit, adjacency=adjacency)
    strategy = _strategy(steps, bands) if coefficients is None else coefficients
    return PrivacyPlan(
        "banded", steps, noise_multiplier, participation, coefficients=strategy, unit=unit, adjacency=adjacency
    )


def most_bands(units: int, batch_size: int, steps: int) -> int:
    """Say how many bands there can be."""
    return max(1, min(steps, units // batch_size))


def slots_of_part(units: int, cycle: int) -> int:
    """Say how many places each of so many equal parts has, some empty where units do not fill them."""
    return -(-units // cycle)


@functools.lru_cache(maxsize=64)
def _strategy(steps: int, bands: int) -> tuple[float, ...]:
    mechanism = MECHANISMS["banded"]
    participation = PoissonParticipation(1.0, cycle=bands)
    return mechanism.coefficients(BandedSettings(bands=bands), steps, participation)


def enough_for_most_batches(batch_size: int) -> int:
    """Choose where to truncate, so that hardly a batch ever is: the batch size and six standard deviations, whatever
    the number of units, of which one more would have to be cut."""
    return math.ceil(batch_size + 6 * math.sqrt(batch_size))
