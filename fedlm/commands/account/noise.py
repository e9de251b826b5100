"""How much noise a statement is about: given, or found for a target."""

from collections.abc import Callable
from dataclasses import dataclass

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.number_ranges import Positive
from fedlm.fl_core.privacy.accounting.delta import Delta
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """The noise, or what it is found for."""

    noise_multiplier: Positive | None = None
    """Standard deviation of one draw of noise, in clip norms."""
    epsilon: Positive | None = None
    """Instead of the noise multiplier: find the least noise for this epsilon."""
    rho: Positive | None = None
    """Instead of the noise multiplier: find the least noise for this rho of zero-concentrated differential privacy."""
    delta: Delta
    """Delta at which epsilon is stated."""
    json: bool = False
    """Print one JSON object."""


def with_chosen_noise(command: NoiseOptions, with_noise: Callable[[float], PrivacyPlan]) -> PrivacyPlan:
    """Plan with the noise that was given, or that is found."""
    from fedlm.fl_core.privacy.promise.guarantee import calibrate

    given = [name for name in ("noise_multiplier", "epsilon", "rho") if getattr(command, name) is not None]
    if len(given) != 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigurationError(f"give exactly one of --noise-multiplier, --epsilon and --rho, not {flags or 'none'}")
    if command.noise_multiplier is not None:
        return with_noise(command.noise_multiplier)
    return calibrate(with_noise, command.delta, command.epsilon, command.rho)
