"""`fedlm account examples`: what central training would promise users whose examples are sampled one by one."""

from dataclasses import dataclass
from typing import Any

from fedlm.fl_core.number_ranges import Count, Positive, Probability
from fedlm.fl_core.privacy.accounting.delta import Delta


@dataclass(frozen=True, kw_only=True)
class ExamplesCommand:
    """State the privacy of users in DP-SGD whose batches are drawn example by example.

    Unit: a user, with a bounded number of examples. Each example is in a batch independently, and its gradient is
    clipped. This is for planning: `fedlm pretrain --unit user` samples users, not their examples.
    """

    examples_per_user: Count
    """K, the most examples of one user."""
    sampling_probability: Probability
    """q, with which each example is in a batch, independently and in secret."""
    steps: Count
    """T, the number of steps."""
    noise_multiplier: Positive
    """Standard deviation of the noise on a step's sum, in clip norms of one example."""
    delta: Delta
    """Delta at which epsilon is stated."""
    json: bool = False
    """Print one JSON object."""


def state_examples(command: ExamplesCommand) -> dict[str, Any]:
    """State what such a training would promise."""
    from fedlm.fl_core.privacy.accounting.sampled_examples import sampled_examples_bounds

    bounds = sampled_examples_bounds(
        command.noise_multiplier,
        command.examples_per_user,
        command.sampling_probability,
        steps=command.steps,
        delta=command.delta,
    )
    return {
        "mechanism": "gaussian",
        "epsilon": bounds.upper,
        "epsilon_lower": bounds.lower,
        "delta": command.delta,
        "noise_multiplier": command.noise_multiplier,
        "rounds": command.steps,
        "unit": f"user: at most {command.examples_per_user} examples, in all steps",
        "adjacency": "add-or-remove: all examples of one user are added to the examples, or removed from them",
        "assumptions": [
            f"each example takes part in each step independently with probability {command.sampling_probability:.6g}, "
            "in secret",
            f"no user has more than {command.examples_per_user} examples, and no example is of several users",
            "the gradient of each example is clipped, and the noised sum is divided by a number fixed beforehand",
            "only models made of noised sums are published",
        ],
    }
