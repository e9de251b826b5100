"""`fedlm account examples`: what central training promises users whose examples are sampled one by one."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from fedlm.commands.account.noise import NoiseOptions, with_chosen_noise
from fedlm.commands.account.printing import print_line, print_statement
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count, LargeCount


@dataclass(frozen=True, kw_only=True)
class ExamplesCommand(NoiseOptions):
    """State the privacy of users in DP-SGD whose batches are drawn example by example, and whether batches of users
    would need less noise.

    Unit: a user, with a bounded number of examples. Each example is in a batch independently, and its gradient is
    clipped, as `fedlm pretrain --unit user --sampling examples` does. Compared with users who are sampled and clipped
    as a whole, at equal epsilon and examples of a step.
    """

    users: LargeCount
    """N, the number of users."""
    examples_per_user: Count
    """K, the examples of each user; users who have fewer are promised the same."""
    batch_size: LargeCount
    """B, the mean number of examples in a batch: each is in it with probability B / (N K)."""
    steps: Count
    """T, the number of steps."""


def plan_examples(command: ExamplesCommand) -> int:
    """State what such a training promises, and which sampling needs less noise."""
    from fedlm.fl_core.privacy.promise.guarantee import MOST_LOSS
    from fedlm.fl_core.privacy.promise.sampling_choice import choose_sampling

    statement, plan = _stated(command)
    epsilon = statement["epsilon"]
    # There is nothing to compare where nothing is released, or everything.
    choice = choose_sampling(plan, epsilon, command.delta) if epsilon and epsilon <= MOST_LOSS else None
    if command.json:
        found = None if choice is None else choice._asdict() | {"less_noise": choice.in_words}
        print(json_text(statement | {"comparison": found}, indent=2))
        return 0
    print_statement(statement)
    if choice is None:
        return 0
    console, users = Console(), command.batch_size / command.examples_per_user
    ratio = f"noise-batch ratio {choice.of_users / users:.6g} with {users:.6g} users in a batch"
    noise = f"noise multiplier {choice.of_users:.6g}, {ratio}"
    print_line(console, "users sampled", noise)
    print_line(console, "less noise", choice.in_words)
    if choice.crossover is not None:
        at = f"below epsilon {choice.crossover:.4g} users need less noise where their gradients are unrelated"
        print_line(console, "crossover", at)
    return 0


def _stated(command: ExamplesCommand) -> tuple[dict[str, Any], Any]:
    from fedlm.fl_core.privacy.promise.central_plan import central_plan
    from fedlm.fl_core.privacy.promise.guarantee import account

    plan = with_chosen_noise(
        command,
        lambda noise: central_plan(
            command.users * command.examples_per_user,
            command.batch_size,
            command.steps,
            noise,
            unit=f"user: at most {command.examples_per_user} examples, in all steps",
            examples_per_user=command.examples_per_user,
        ),
    )
    ratio = {"noise_batch_ratio": plan.noise_multiplier / command.batch_size}
    return account(plan, command.delta).as_json() | ratio | {"plan": plan.as_json()}, plan
