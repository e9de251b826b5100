"""From a plan, and the rounds that ran, to what can be promised.

Every mechanism but Poisson-sampled Gaussian noise is one Gaussian mechanism on the vector of all releases. Its noise
has standard deviation sigma in units of the clip norm. One client changes the vector, before the noise, by at most
`sensitivity` clip norms, however later updates depend on earlier releases (Denisov et al. 2022, "Improved
differential privacy for SGD via optimal private linear operators on adaptive streams"). So `rho = sensitivity^2 /
(2 sigma^2)`, and epsilon is that of the Gaussian mechanism itself, which is tighter than by way of rho. Of sampled
rounds those that one client may be drawn in are composed by `composition`, whose epsilon is an upper bound at any
delta, with a lower bound beside it. Noise that clients add in integers is not Gaussian: its Renyi divergences in the
rounds of one client add up.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import scipy

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.accounting_library import accounting_library
from fedlm.fl_core.privacy.accounting.composition import delta_above, epsilon_above, epsilon_bounds
from fedlm.fl_core.privacy.accounting.delta import check_delta
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_epsilon_above, gaussian_noise_multiplier
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.accounting.release_events import Event, GaussianEvent
from fedlm.fl_core.privacy.mechanisms.interface import Generations
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, SampledSum
from fedlm.fl_core.privacy.promise.assumptions import adjacency_in_words, against_server, assumptions, names_of
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.models.arguments import checked_arguments

_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6
MOST_LOSS = 1e6
"""Epsilon, or rho, that noise is found for at most."""

_RELATIONS = {"add_or_remove": "ADD_OR_REMOVE_ONE", "zero_out": "REPLACE_SPECIAL"}  # as dp-accounting names them


@dataclass(frozen=True)
class Guarantee:
    """What a person can publish.

    Attributes:
      mechanism: its name.
      epsilon: at `delta`, an upper bound.
      delta: the probability-like slack.
      rho: of zero-concentrated differential privacy; None where the accounting knows none.
      sensitivity: L2 sensitivity in clip norms of all releases together; None where rounds are amplified by sampling.
      noise_multiplier: standard deviation of one draw of noise in clip norms.
      rounds: the releases that are accounted.
      unit: whose presence is hidden.
      adjacency: which data sets are neighbours.
      assumptions: what must hold for this to be true.
      epsilon_lower: below which the epsilon of the accounted pairs of distributions cannot lie; what `epsilon` exceeds
        it by is the error of computing. That of closed forms is 0. Of noise that clients add it is not known: 0.
      epsilon_by_rdp: the looser epsilon of Renyi accounting, for comparison; None where sampling is not Poisson, or of
        examples.
      against_server: what holds against whoever runs the server, beside readers of released models, and with what
        trust; None where the server adds the noise, and sees each update.

    Example:
      >>> from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
      >>> bound = BoundedParticipation(max_participations=4)
      >>> plan = PrivacyPlan(mechanism="gaussian", rounds=100, noise_multiplier=4.0, participation=bound)
      >>> guarantee = account(plan, delta=1e-6)
      >>> guarantee.rounds, guarantee.unit
      (100, 'client: all examples of one client, in all rounds')
      >>> guarantee.adjacency.partition(':')[0]
      'zero-out'
    """

    mechanism: str
    epsilon: float
    delta: float
    rho: float | None
    sensitivity: float | None
    noise_multiplier: float
    rounds: int
    unit: str
    adjacency: str
    assumptions: tuple[str, ...]
    epsilon_lower: float
    epsilon_by_rdp: float | None = None
    against_server: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Make a JSON-able dictionary; an infinite epsilon is None."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("epsilon", "epsilon_lower"):
            values[name] = values[name] if math.isfinite(values[name]) else None
        return values | {"assumptions": list(self.assumptions)}

    def sentence(self) -> str:
        """Say it in one sentence."""
        rho = "" if self.rho is None else f", rho-zCDP with rho = {rounded_up(self.rho)}"
        server = "" if self.against_server is None else f"; against the server: {self.against_server}"
        return (
            f"(epsilon = {rounded_up(self.epsilon)}, delta = {rounded_up(self.delta)})-differential privacy{rho}; "
            f"unit: {self.unit}; adjacency: {self.adjacency}; assumptions: as `fedlm account ledger` lists them; "
            f"{self.rounds} {names_of(self.unit)[1]}s of {self.mechanism} noise, multiplier {self.noise_multiplier:.6g}"
            f"{server}"
        )


@checked_arguments
def account(plan: PrivacyPlan, delta: float, generations: Generations | None = None) -> Guarantee:
    """Account what the rounds of some generations have spent; what the whole plan promises where there are None.

    Raises:
      ConfigurationError: delta is out of range.

    Example:
      >>> from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
      >>> bound = BoundedParticipation(max_participations=4)
      >>> plan = PrivacyPlan(mechanism="gaussian", rounds=100, noise_multiplier=4.0, participation=bound)
      >>> round(account(plan, delta=1e-6).epsilon, 2)
      2.25
    """
    check_delta(delta)
    generations = [(0, plan.rounds)] if generations is None else list(generations)
    rounds = sum(end - first for first, end in generations)
    common: dict[str, Any] = {
        "mechanism": plan.mechanism,
        "delta": delta,
        "noise_multiplier": plan.noise_multiplier,
        "rounds": rounds,
    }
    common |= {"unit": plan.unit, "adjacency": adjacency_in_words(plan), "assumptions": assumptions(plan)}
    common["against_server"] = against_server(plan)
    if plan.participation.sampled:
        epsilon, lower = epsilon_bounds(events_of(plan, generations), delta)
        looser = _epsilon_by_rdp(plan, generations, delta)
        return Guarantee(
            epsilon=epsilon, epsilon_lower=lower, rho=None, sensitivity=None, epsilon_by_rdp=looser, **common
        )
    squared = sensitivity_squared(plan, generations)
    if MECHANISMS[plan.mechanism].distributed:
        epsilon, lower = epsilon_bounds(events_of(plan, generations), delta)
        return Guarantee(epsilon=epsilon, epsilon_lower=lower, rho=None, sensitivity=math.sqrt(squared), **common)
    epsilon = gaussian_epsilon(plan.noise_multiplier, math.sqrt(squared), delta)
    return Guarantee(
        epsilon=epsilon,
        epsilon_lower=epsilon,
        rho=squared / (2 * plan.noise_multiplier**2),
        sensitivity=math.sqrt(squared),
        **common,
    )


def events_of(plan: PrivacyPlan, generations: Generations | None = None) -> list[Event]:
    """Describe what the rounds of some generations have released, to be composed with other runs' releases.

    The whole plan's where there are no generations; empty where nothing was released.
    """
    generations = [(0, plan.rounds)] if generations is None else list(generations)
    rounds = sum(end - first for first, end in generations)
    if not rounds:
        return []
    mechanism = MECHANISMS[plan.mechanism]
    if plan.participation.sampled:
        # Where a unit may be drawn again, all that its last round was spread over has ended: each is a sampled Gaussian
        # mechanism of its own, on the outputs between (Choquette-Choo et al. 2023, "(Amplified) banded matrix
        # factorization: A unified approach to private training", theorem 4).
        noise = plan.noise_multiplier / math.sqrt(_squared_sensitivity_to_one_round(plan))
        reach, one_more = mechanism.reach(plan) or 1, plan.adjacency == "add_or_remove"
        # What would follow the last round moves nothing, and has no part in the norm of what does.
        column = plan.coefficients[: plan.rounds]
        return [plan.participation.event(*SampledSum(noise, reach, column, one_more).drawn_once(generations))]
    if mechanism.distributed:
        return [mechanism.releases(plan, generations)]
    squared = sensitivity_squared(plan, generations)
    return [GaussianEvent(plan.noise_multiplier / math.sqrt(squared))] if squared else []


def sensitivity_squared(plan: PrivacyPlan, generations: Generations) -> float:
    """Bound the squared L2 sensitivity of all releases of these rounds to one client, for updates of norm 1.

    Raises:
      ConfigurationError: participation is not bounded.
    """
    return MECHANISMS[plan.mechanism].sensitivity_squared(plan, generations)


def _squared_sensitivity_to_one_round(plan: PrivacyPlan) -> float:
    """Bound what one round's sum moves all releases by, squared."""
    once = dataclasses.replace(plan, participation=BoundedParticipation(1), adjacency="zero_out")
    return sensitivity_squared(once, [(0, plan.rounds)])


def gaussian_epsilon(noise_multiplier: float, sensitivity: float, delta: float) -> float:
    """Compute epsilon of the Gaussian mechanism; see `gaussian_epsilon_above`."""
    return gaussian_epsilon_above(noise_multiplier / sensitivity, delta) if sensitivity else 0.0


def _epsilon_by_rdp(plan: PrivacyPlan, generations: Generations, delta: float) -> float | None:
    events = events_of(plan, generations)
    if not events:
        return None
    (event,) = events
    if not isinstance(event, GaussianEvent) or event.most is not None:
        return None
    dp_accounting = accounting_library()
    relation = dp_accounting.NeighboringRelation[_RELATIONS[str(plan.adjacency)]]
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    noise = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    step = dp_accounting.PoissonSampledDpEvent(event.sampling_probability, noise)
    return float(accountant.compose(dp_accounting.SelfComposedDpEvent(step, event.count)).get_epsilon(delta))


def privacy_profile(plan: PrivacyPlan, epsilons: Sequence[float]) -> list[float]:
    """Compute the smallest delta at each epsilon: all that there is to know about the plan's privacy."""
    events = events_of(plan)
    return [delta_above(events, float(epsilon)) for epsilon in epsilons]


@checked_arguments
def calibrate(
    with_noise: Callable[[float], PrivacyPlan],
    delta: float,
    epsilon: float | None = None,
    rho: float | None = None,
) -> PrivacyPlan:
    """Find the least noise, and its plan, for an epsilon at delta, or for zCDP's rho.

    Raises:
      ConfigurationError: the target is not positive, not one was given, or there is no rho for the plan.

    Example:
      >>> from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
      >>> bound = BoundedParticipation(max_participations=4)
      >>> plan = calibrate(lambda noise: PrivacyPlan("gaussian", 100, noise, bound), delta=1e-6, epsilon=2.0)
      >>> account(plan, delta=1e-6).epsilon <= 2.0
      True
    """
    if (epsilon is None) == (rho is None):
        raise ConfigurationError("give either epsilon or rho to calibrate the noise to")
    target = epsilon if rho is None else rho
    if target is None or not 0 < target <= MOST_LOSS:
        raise ConfigurationError(f"the target is {target}, but must be positive and finite, {MOST_LOSS:g} at most")
    check_delta(delta)
    plan = with_noise(1.0)
    distributed = MECHANISMS[plan.mechanism].distributed
    if not plan.participation.sampled and not distributed:
        sensitivity = math.sqrt(sensitivity_squared(plan, [(0, plan.rounds)]))
        unit = 1 / math.sqrt(2 * rho) if rho else gaussian_noise_multiplier(target, delta)
        noise = _rounded_up(sensitivity * unit)
        while epsilon is not None and gaussian_epsilon(noise, sensitivity, delta) > epsilon:
            noise = _rounded_up(noise * (1 + 1e-7))
        return with_noise(noise)
    if rho is not None:
        why = "noise of clients gives" if distributed else "Poisson sampling amplifies"
        raise ConfigurationError(f"{why} privacy in a way that rho does not express; give {setting('epsilon')}")
    return with_noise(least_noise(lambda noise: epsilon_of(with_noise(noise), delta), target))


def epsilon_of(plan: PrivacyPlan, delta: float) -> float:
    """Bound the epsilon of a whole plan at delta from above."""
    return epsilon_above(events_of(plan), delta)


def least_noise(epsilon_of: Callable[[float], float], target: float) -> float:
    """Find the least noise multiplier that keeps an epsilon, rounded up at four digits.

    `epsilon_of` falls as noise grows, and may take long to compute.

    Raises:
      ConfigurationError: no multiplier between a thousandth and a million reaches the target.
    """
    known = functools.lru_cache(maxsize=None)(epsilon_of)
    low = high = 1.0
    while known(high) > target:
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise ConfigurationError(
                f"no noise multiplier up to {_MOST_NOISE:g} reaches {target:g}; ask for a larger one"
            )
    while known(low) <= target and low > _LEAST_NOISE:
        low, high = low / 2, low
    if low < high and known(low) > target:
        # Epsilon is about a power of the noise, so that a few steps on logarithms do.
        high = scipy.optimize.brentq(
            lambda noise: math.log(min(max(known(noise), 1e-9), 1e9) / target), low, high, rtol=1e-4, xtol=1e-9
        )
    while known(high) > target:
        high *= 1 + 5e-5
    high = _rounded_up(high)
    while known(high) > target:  # an epsilon by Monte Carlo need not fall with every change of the noise
        high = _rounded_up(high * (1 + 5e-4))
    return high


def _rounded_up(value: float) -> float:
    """Keep seven digits, never fewer noise than was asked for."""
    digits = 10.0 ** (6 - math.floor(math.log10(value)))
    return math.ceil(value * digits) / digits
