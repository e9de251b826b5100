"""The losses of single releases by balls (Arb): P and Q as mixtures of normal distributions, and delta exactly.

They are described anew from events; a bound here is a theorem of the library's. `ball_losses` says what for.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from flint import arb, arb_poly, ctx

from fedlm.fl_core.privacy.accounting.losses.loss_pairs import Direction, truncation
from fedlm.fl_core.privacy.accounting.release_events import ExamplesEvent, GaussianEvent

ctx.prec = 256
INFINITE = arb("inf")
_ROOT_HALF = arb(0.5).sqrt()
_NEWTON_STEPS = 400
_CLOSE = arb(2) ** -200
_RADII = (-198, -160, -120, -80)  # of a ball, as powers of 2


@dataclass(frozen=True, eq=False)
class Pair:
    """P and Q as mixtures of normal distributions of variance 1, and the loss, which rises with the outcome.

    Attributes:
      own: weights and means of P.
      other: weights and means of Q.
      outcome: of the exponential of a loss; None where the loss is always larger, infinite where it is always smaller.
      rare: with which the person takes part.
    """

    own: tuple[tuple[arb, arb], ...]
    other: tuple[tuple[arb, arb], ...]
    outcome: Callable[[arb], arb | None]
    rare: arb

    def above(self, ratio: arb) -> tuple[arb, arb]:
        """P's and Q's mass where the exponential of the loss is above this."""
        outcome = self.outcome(ratio)
        if outcome is None:
            return arb(1), arb(1)
        if outcome == INFINITE:
            return arb(0), arb(0)
        return tuple(
            sum((weight * ((outcome - mean) * _ROOT_HALF).erfc() / 2 for weight, mean in side), arb(0))
            for side in (self.own, self.other)
        )


def _directed(mixed: tuple[tuple[arb, arb], ...], at_ratio: Callable[[arb], arb | None], direction: Direction) -> Pair:
    """A mixture against the noise alone, or the other way about: then outcomes are minus what they are."""
    normal, rare = ((arb(1), arb(0)),), 1 - mixed[0][0]
    if direction == "remove":
        return Pair(mixed, normal, at_ratio, rare)

    def outcome(ratio: arb) -> arb:
        found = at_ratio(1 / ratio)
        return INFINITE if found is None else -found

    return Pair(normal, tuple((weight, -mean) for weight, mean in mixed), outcome, rare)


def _sampled(shift: arb, q: arb, direction: Direction) -> Pair:
    def at_ratio(ratio: arb) -> arb | None:
        odds = (ratio - (1 - q)) / q
        if odds <= 0:
            return None
        if not odds > 0:
            raise ArithmeticError("not enough digits")
        return odds.log() / shift + shift / 2

    return _directed(((1 - q, arb(0)), (q, shift)), at_ratio, direction)


def _examples(shift: arb, q: arb, count: int, direction: Direction) -> Pair:
    """What so many examples move the sum by, each drawn with probability q."""
    numbers = range(count + 1)
    weights = [math.comb(count, k) * q**k * (1 - q) ** (count - k) for k in numbers]
    # The ratio of the densities is a polynomial of z = exp(shift u), and rises.
    ratio_of = arb_poly([weight * (-((k * shift) ** 2) / 2).exp() for k, weight in zip(numbers, weights, strict=True)])
    slope_of = ratio_of.derivative()

    def at_ratio(ratio: arb) -> arb | None:
        if ratio <= weights[0]:
            return None
        # Each term alone is no more than the sum, which is convex in log z: Newton's method comes down to the root.
        logs = [((ratio / ratio_of[k]).log() / k).mid() for k in numbers[1:]]
        log_z = min(logs, key=float)
        for _ in range(_NEWTON_STEPS):
            z = log_z.exp()
            value = ratio_of(z)
            step = ((value / ratio).log() * value / (z * slope_of(z))).mid()
            log_z = (log_z - step).mid()
            if abs(step) < _CLOSE * (1 + abs(log_z)):
                break
        for about in _RADII:
            about = arb(2) ** about * (1 + abs(log_z))
            if ratio_of((log_z - about).exp()) < ratio < ratio_of((log_z + about).exp()):
                return arb(log_z, about) / shift
        raise ArithmeticError("not enough digits")

    return _directed(
        tuple((weight, k * shift) for k, weight in zip(numbers, weights, strict=True)), at_ratio, direction
    )


def _replaced(shift: arb, q: arb) -> Pair:
    mixtures = (((1 - q, arb(0)), (q, sign * shift)) for sign in (1, -1))
    if q == 1:
        return Pair(*mixtures, lambda ratio: ratio.log() / (2 * shift), q)
    odds = q * (-(shift**2) / 2).exp() / (1 - q)

    def outcome(ratio: arb) -> arb:
        # Of the quadratic equation of exp(shift u).
        less, sign = (ratio - 1, 1) if not ratio < 1 else (1 / ratio - 1, -1)
        root = (less**2 + 4 * odds**2 * (less + 1)).sqrt()
        return sign * ((less + root) / (2 * odds)).log() / shift

    return Pair(*mixtures, outcome, q)


@dataclass(frozen=True, eq=False)
class Release:
    """The loss of one release: which of the pairs is at work is drawn by their weights, and known."""

    pairs: tuple[tuple[arb, Pair], ...]

    def delta(self, epsilon: arb) -> arb:
        """Exactly."""
        ratio = epsilon.exp()
        found = arb(0)
        for weight, pair in self.pairs:
            own, other = pair.above(ratio)
            found += weight * (own - ratio * other)
        return found


@functools.lru_cache(maxsize=64)
def release_of(event: GaussianEvent | ExamplesEvent, direction: Direction) -> Release:
    """Describe a release anew from its event."""
    shift, q = 1 / arb(event.noise_multiplier), arb(event.sampling_probability)
    if isinstance(event, ExamplesEvent):
        return Release(((arb(1), _examples(shift, q, event.examples, direction)),))
    whole = _sampled(shift, q, direction)
    if event.population is None or event.most is None:
        return Release(((arb(1), whole),))
    cut, replaced = truncation(event.sampling_probability, event.population, event.most)
    if not cut:
        return Release(((arb(1), whole),))
    return Release(((1 - arb(cut), whole), (arb(cut), _replaced(2 * shift, arb(replaced)))))


@functools.lru_cache(maxsize=64)
def release_of_all(events: tuple[GaussianEvent | ExamplesEvent, ...], direction: Direction) -> Release:
    """Describe all releases in which a person always is, as one: noise that hides everybody equally adds up."""
    shifts = [
        (event.examples if isinstance(event, ExamplesEvent) else 1) / arb(event.noise_multiplier) for event in events
    ]
    squared = sum((event.count * shift**2 for event, shift in zip(events, shifts, strict=True)), arb(0))
    return Release(((arb(1), _sampled(squared.sqrt(), arb(1), direction)),))
