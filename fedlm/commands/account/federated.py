"""`fedlm account MECHANISM`: what a federated run with one of the noise mechanisms promises."""

from dataclasses import dataclass
from typing import Any

from fedlm.commands.account.noise import NoiseOptions, with_chosen_noise
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, Probability
from fedlm.fl_core.privacy.mechanisms.interface import Mechanism
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan, plan_noise


@dataclass(frozen=True, kw_only=True)
class _Federated(NoiseOptions):
    rounds: Count
    """T, the number of rounds."""
    max_participations: Count | None = None
    """k, the most rounds in which a client takes part."""
    min_separation: Count = 1
    """b, the least difference between the numbers of two rounds of a client: 1 allows adjacent rounds. (TensorFlow
    Privacy counts the rounds between the two, which is one less.)"""


@dataclass(frozen=True, kw_only=True)
class _Sampling:
    sampling_probability: Probability | None = None
    """Probability that a client takes part in a round, independently and in secret (Poisson sampling)."""


def command_of(mechanism: Mechanism) -> type:
    """Make the options of a mechanism's statement, its own last."""
    sampled = mechanism.independent_rounds
    who = (
        "Either every client takes part in every round independently with `--sampling-probability`, which amplifies "
        "privacy\n(adjacency: add-or-remove), or in at most `--max-participations` rounds that anybody may choose "
        "(zero-out)."
        if sampled
        else "Unit: a client, with all its examples. Adjacency: zero-out."
    )
    about = f"State the privacy of a federated run with {mechanism.summary}.\n\n{who}"
    bases = (mechanism.options, *((_Sampling,) if sampled else ()), _Federated)
    return dataclass(frozen=True, kw_only=True)(type("_MechanismCommand", bases, {"__doc__": about}))


def state_federated(mechanism: Mechanism, command: Any) -> dict[str, Any]:
    """State what a federated run with a mechanism promises."""
    from fedlm.fl_core.privacy.promise.guarantee import account

    probability = getattr(command, "sampling_probability", None)
    participation: Any = BoundedParticipation(command.max_participations, command.min_separation)
    if probability is not None:
        if command.max_participations is not None or command.min_separation != 1:
            raise ConfigurationError(
                f"{setting('sampling_probability')} together with {setting('max_participations')} or "
                f"{setting('min_separation')}: a bound on participation is not made use of where clients are sampled; "
                "give one or the other"
            )
        participation = PoissonParticipation(probability)
    # The command has the mechanism's options among its own.
    with_noise = plan_noise(mechanism.name, command.rounds, participation, options=command)
    plan = with_chosen_noise(command, with_noise)
    statement = account(plan, command.delta).as_json()
    return statement | {"privacy_profile": _profile(plan, statement["epsilon"]), "plan": plan.as_json()}


def _profile(plan: PrivacyPlan, epsilon: float | None) -> list[dict[str, float]]:
    """The least delta at some epsilons around the stated one."""
    from fedlm.fl_core.privacy.promise.guarantee import privacy_profile

    epsilons = [part * (epsilon or 1.0) for part in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)]
    deltas = privacy_profile(plan, epsilons)
    return [{"epsilon": one, "delta": delta} for one, delta in zip(epsilons, deltas, strict=True)]
