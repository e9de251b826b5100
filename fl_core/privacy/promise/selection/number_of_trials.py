"""How many runs a private selection trains: drawn from a distribution, since a fixed number would cost more.

The distributions are those of Papernot and Steinke (2022, "Hyperparameter tuning with Renyi differential privacy",
definition 1 and theorem 6). The number is secret: it is drawn from the operating system's entropy, by exact arithmetic.
"""

import dataclasses
import decimal
import functools
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, get_args

import scipy

from fedlm.fl_core.errors import ConfigurationError, setting

TrialsName = Literal["poisson", "truncated_negative_binomial"]
MOST_EXPECTED = 10_000.0
_DIGITS = 80
_DRAWN_BITS = 192  # of a draw: a distribution is met within 2^-190 in total variation


@dataclass(frozen=True)
class TrialsLaw:
    """The distribution of the number of trials.

    Attributes:
      distribution: `poisson`, which may give no trial at all, or `truncated_negative_binomial`, which gives at least
        one.
      expected_trials: mean of the number of trials.
      eta: shape of the truncated negative binomial distribution, 1 for the geometric one and 0 for the logarithmic one;
        None for Poisson.

    Example:
      >>> law = TrialsLaw("truncated_negative_binomial", 10.0, 1.0)
      >>> round(law.gamma, 6)
      0.1
    """

    distribution: TrialsName
    expected_trials: float
    eta: float | None = None

    def __post_init__(self) -> None:
        if self.distribution not in get_args(TrialsName):
            raise ConfigurationError(
                f"the distribution of trials is {self.distribution!r}, but must be one of {get_args(TrialsName)}"
            )
        if not 1 < self.expected_trials <= MOST_EXPECTED:
            raise ConfigurationError(
                f"{setting('expected_trials')} is {self.expected_trials}, but must lie above 1, and "
                f"{MOST_EXPECTED:g} at most"
            )
        if (self.distribution == "poisson") != (self.eta is None):
            raise ConfigurationError(
                f"{setting('selection_eta')} is {self.eta} with {self.distribution}; only the other one has it"
            )
        if self.eta is not None and not 0 <= self.eta <= 100:
            raise ConfigurationError(f"{setting('selection_eta')} is {self.eta}, but must lie between 0 and 100")

    @property
    def shape(self) -> float:
        """The distribution's shape, as `dp_accounting.RepeatAndSelectDpEvent` has it: eta, infinite for Poisson."""
        return math.inf if self.eta is None else self.eta

    @functools.cached_property
    def gamma(self) -> float:
        """The parameter of the truncated negative binomial distribution that gives it its mean."""
        low, high = math.log(1e-9), -1e-12
        logarithm = scipy.optimize.brentq(
            lambda value: math.log(_mean(value, self.shape) / self.expected_trials), low, high, xtol=1e-15, rtol=1e-14
        )
        return math.exp(logarithm)

    def probabilities(self) -> Iterator[Decimal]:
        """Give the probabilities of 0, 1, 2 and more trials, to 80 digits."""
        number = 0 if self.eta is None else 1
        with decimal.localcontext(prec=_DIGITS):
            if self.eta is None:
                mean = Decimal(self.expected_trials)
                current = (-mean).exp()
            else:
                gamma, eta = Decimal(self.gamma), Decimal(self.eta)
                norm = ((-eta * gamma.ln()).exp() - 1) / eta if eta else -gamma.ln()
                current = (1 - gamma) / norm
        if number:
            yield Decimal(0)
        yield current
        while True:
            with decimal.localcontext(prec=_DIGITS):
                step = mean if self.eta is None else (1 - gamma) * (number + eta)
                number += 1
                current = current * step / number
            yield current

    def draw(self, random_below: Callable[[int], int] = secrets.randbelow) -> int:
        """Draw a number of trials.

        Args:
          random_below: from n to a whole number from 0 to n - 1, each as likely.
        """
        total, least = Decimal(0), Decimal(10) ** (20 - _DIGITS)
        drawn = Decimal(random_below(1 << _DRAWN_BITS))
        with decimal.localcontext(prec=_DIGITS):
            drawn /= 1 << _DRAWN_BITS
            for number, probability in enumerate(self.probabilities()):
                total += probability
                # Beyond these the digits end.
                if drawn < total or (number > self.expected_trials and probability < least):
                    return number
        raise AssertionError

    def words(self) -> str:
        """Name the distribution in a sentence."""
        if self.eta is None:
            return f"Poisson distribution with mean {self.expected_trials:g}"
        return f"truncated negative binomial distribution with mean {self.expected_trials:g} and eta {self.eta:g}"

    def as_json(self) -> dict[str, Any]:
        """Make a JSON-able dictionary, whose values make the law again."""
        return dataclasses.asdict(self)


def _mean(log_gamma: float, eta: float) -> float:
    """Compute the mean of the truncated negative binomial distribution (definition 1)."""
    odds = math.expm1(-log_gamma)
    if eta == 0:
        return odds / -log_gamma
    return eta * odds / -math.expm1(eta * log_gamma)
