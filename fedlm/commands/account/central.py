"""`fedlm account dpsgd`: what central training promises."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fedlm.commands.account.noise import NoiseOptions, with_chosen_noise
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, LargeCount
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan


@dataclass(frozen=True, kw_only=True)
class DpSgdCommand(NoiseOptions):
    """State the privacy of central training with DP-SGD, or with banded noise.

    Unit: an example. Every example is in a batch independently with probability batch-size / examples. With bands, each
    example belongs to one of as many parts, and is in the batches of its part with as many times that probability.
    Accounted by privacy loss distributions: epsilon is an upper bound at any delta, with a lower bound and the looser
    epsilon of Renyi accounting beside it.
    """

    examples: LargeCount
    """N, the number of examples."""
    batch_size: LargeCount
    """B, the mean number of examples in a batch."""
    steps: Count
    """T, the number of steps."""
    sampling: Literal["poisson", "truncated-poisson", "balls-in-bins", "min-separation"] = "poisson"
    """How batches are drawn. truncated-poisson: a batch that is too large for the device loses examples at random.
    balls-in-bins: each example is in one of examples / batch-size bins, drawn once, and bins take turns.
    min-separation: an example is not drawn again within as many steps as there are bands."""
    truncated_batch_size: Annotated[LargeCount | None, OnlyWith("sampling", "truncated-poisson")] = None
    """Most examples that the device takes, for truncated-poisson. If not given, the batch size plus six standard
    deviations."""
    mechanism: Literal["gaussian", "banded"] = "gaussian"
    """gaussian: the noise of every step is independent. banded: it is correlated, with cyclic sampling (amplified
    banded matrix factorization)."""
    bands: Annotated[Count | None, OnlyWith("mechanism", "banded")] = None
    """Bands of the banded mechanism. If not given, the number with the least error at epsilon."""
    adjacency: Literal["add_or_remove", "zero_out"] = "add_or_remove"
    """Which data sets are neighbours: one example more or less, or one example whose gradient is zero."""


def state_central(command: DpSgdCommand) -> dict[str, Any]:
    """State what central training promises."""
    from fedlm.fl_core.privacy.promise.band_choice import best_bands
    from fedlm.fl_core.privacy.promise.central_plan import central_plan, enough_for_most_batches, most_bands
    from fedlm.fl_core.privacy.promise.guarantee import account

    truncated = command.truncated_batch_size
    if command.sampling == "truncated-poisson" and truncated is None:
        truncated = enough_for_most_batches(command.batch_size)

    def planned(bands: int | None) -> PrivacyPlan:
        def with_noise(noise_multiplier: float) -> PrivacyPlan:
            return central_plan(
                command.examples,
                command.batch_size,
                command.steps,
                noise_multiplier,
                truncated_batch_size=truncated,
                in_bins=command.sampling == "balls-in-bins",
                min_separation=command.sampling == "min-separation",
                adjacency=command.adjacency,
                bands=bands,
            )

        return with_chosen_noise(command, with_noise)

    if command.mechanism == "gaussian" or command.bands is not None:
        plan = planned(command.bands)
    elif command.epsilon is None or command.sampling == "min-separation":
        raise ConfigurationError(
            f"bands can only be chosen for an epsilon, and not for the sampling min-separation; give {setting('bands')}"
        )
    else:
        plan = best_bands(planned, most_bands(command.examples, command.batch_size, command.steps))
    return account(plan, command.delta).as_json() | {
        "bands": len(plan.coefficients) or None,
        "truncated_batch_size": truncated,
        "noise_batch_ratio": plan.noise_multiplier / command.batch_size,
        "plan": plan.as_json(),
    }
