"""What `fedlm laws plan` prints of a plan."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_down, rounded_up
from fedlm.fl_core.privacy.promise.guarantee import Guarantee
from fedlm.simulations.laws.planning.architectures import Architecture
from fedlm.simulations.laws.planning.central_planner import Plan
from fedlm.simulations.laws.planning.central_training import ChosenTraining
from fedlm.simulations.laws.planning.configurations import Doubled
from fedlm.simulations.laws.planning.federated_training import ChosenFederatedTraining


def print_plan(chosen: ChosenTraining, plan: Plan, near: float, measured_steps: float) -> None:
    """Print a plan of central training, and the training that is chosen by it."""
    values = {
        "parameters": f"{chosen.parameters:,}{_name(chosen.model)}",
        "batch_size": f"{chosen.batch_size:,}",
        "steps": f"{chosen.steps:,}",
        "noise_batch_ratio": f"{chosen.noise_batch_ratio:.4g}",
        "loss": f"{chosen.loss:.4f}",
    }
    passes = chosen.batch_size * chosen.steps / chosen.examples
    measured = plan.saturating_steps <= measured_steps
    saturating = f", by extrapolation: the best training of that takes {plan.saturating_steps:,.0f} steps"
    spend_less = "spend less: " if plan.saturating_compute < plan.budget.compute else ""
    lines = [
        f"noise multiplier {chosen.noise_multiplier:.6g}, learning rate {chosen.learning_rate:.4g}, "
        f"{chosen.compute:.3g} operations, {passes:.3g} passes over {chosen.examples:,} examples",
        _predicted(chosen.loss, chosen.band),
        *_doubled(plan.doubled),
        f"{spend_less}more compute than {plan.saturating_compute:.3g} operations buys less than {near:.0%} of the loss"
        f"{'' if measured else saturating}",
        *_cheaper(plan),
        *chosen.notes,
        _promise(chosen.guarantee),
        *chosen.covers,
    ]
    _print_table(values, plan.near, near, lines)


def print_federated_plan(found: ChosenFederatedTraining, near: float) -> None:
    """Print the federated training that is planned."""
    values = {
        "parameters": f"{found.parameters:,}{_name(found.model)}",
        "cohort_size": f"{found.cohort_size:,}",
        "rounds": f"{found.rounds:,}",
        "noise_batch_ratio": f"{found.noise_batch_ratio:.4g}",
        "loss": f"{found.loss:.4f}",
    }
    drawn = [f"{name.replace('_', ' ')} {value}" for name in _DRAWN if (value := getattr(found, name)) is not None]
    rates = [f"{name.replace('_', ' ')} {rate:.4g}" for name, rate in found.rates.items()]
    lines = [
        ", ".join([f"noise multiplier {found.noise_multiplier:.6g}", *drawn, *rates]),
        f"{found.client_trainings:,} client trainings, {found.client_trainings / found.people:.3g} of each of "
        f"{found.people:,} people",
        _predicted(found.loss, found.band),
        *_doubled(found.doubled),
        *found.notes,
        _promise(found.guarantee),
        *found.covers,
    ]
    _print_table(values, found.near, near, lines)


_DRAWN = ("mechanism", "cohort_sampler", "min_separation", "max_participations")


def _doubled(doubled: dict[str, Doubled]) -> list[str]:
    """Say what more of each part of the budget gives."""
    known = "; it has the least noise that was measured, and nobody measured what less noise gains"
    return [
        f"twice the {part.replace('_', ' ')}: {_loss(found.loss)}{known if found.asks_for_less_noise else ''}"
        for part, found in doubled.items()
    ]


def _cheaper(plan: Plan) -> list[str]:
    if plan.cheaper is None:
        return []
    compute, loss = plan.cheaper
    return [f"spend less: the best training of {compute:.3g} operations is predicted to have loss {loss:.4f}"]


def _print_table(
    values: dict[str, str], ranges: dict[str, tuple[float, float]], near: float, lines: Sequence[str]
) -> None:
    """Print the best by names, beside what is near it, and some lines below."""
    console = Console()
    table = Table("", "best", f"loss within {near:.0%}", title="the best training for the budget", title_justify="left")
    for field, value in values.items():
        low, high = ranges[field]
        table.add_row(field.replace("_", " "), value, f"{low:,.4g} to {high:,.4g}")
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _predicted(loss: float, band: tuple[float, float]) -> str:
    low, high = band
    between = f", between {low:.4f} and {high:.4f} with probability 0.9" if math.isfinite(low) else ""
    return f"predicted loss {loss:.4f} nats per predicted token{between}"


def _promise(guarantee: Guarantee | None) -> str:
    if guarantee is None:
        return "NOT PRIVATE: epsilon is infinite"
    bounds = f"epsilon {rounded_up(guarantee.epsilon)} (at least {rounded_down(guarantee.epsilon_lower)})"
    return (
        f"such a run, once it is trained as planned, has {bounds} at delta {rounded_up(guarantee.delta)}; unit: "
        f"{guarantee.unit}; adjacency: {guarantee.adjacency}; if: {'; '.join(guarantee.assumptions)}"
    )


def _loss(value: float) -> str:
    return f"loss {value:.4f}" if math.isfinite(value) else "outside what was measured"


def _name(model: Architecture | None) -> str:
    return "" if model is None else f" ({model.name or _shape(model.description)})"


def _shape(description: dict[str, Any]) -> str:
    config = description["config"]
    return f"{description['architecture']}, {config['layers']} layers of width {config['embedding']}"
