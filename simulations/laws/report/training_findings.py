"""What McKenna et al. 2025 found of best trainings, tested on laws: sizes, saturation, tokens, fixed trainings."""

from typing import Literal, NamedTuple

import numpy as np

from fedlm.simulations.laws.figures.allocation import CHINCHILLA
from fedlm.simulations.laws.figures.choices import BASELINE_EXAMPLES, CHOICES, baseline_table
from fedlm.simulations.laws.figures.search import DELTA, EPSILONS, EXAMPLES, TrainingSearch, computes_of, shown_computes
from fedlm.simulations.laws.figures.table import Table, in_words
from fedlm.simulations.laws.figures.table2 import saturating_table
from fedlm.simulations.laws.planning.central_planner import FLOPS, Budget

FEW = 3
"""Computes, or budgets, that a trend needs."""
MOST = 0.8
"""Share of cases that counts as a trend."""
Verdict = Literal["holds", "does not hold", "not reached"]
Numbers = tuple[tuple[str, str], ...]


class Judgement(NamedTuple):
    """What laws say of a finding: a verdict, what it is by, and numbers, in words and as text."""

    verdict: Verdict
    why: str
    numbers: Numbers = ()


def judged(holds: bool, why: str, numbers: Numbers | list[tuple[str, str]]) -> Judgement:
    """Judge by whether it holds."""
    return Judgement("holds" if holds else "does not hold", why, tuple(numbers))


def not_reached(why: str, numbers: Numbers | list[tuple[str, str]] = ()) -> Judgement:
    """Say why nothing can be said."""
    return Judgement("not reached", why, tuple(numbers))


def span(low: float, high: float) -> str:
    """Write between which numbers something lies."""
    return f"{in_words(low)} to {in_words(high)}"


def inside(search: TrainingSearch, examples: float, epsilon: float) -> Table:
    """Tabulate the best trainings by compute that are at no end of the grid."""
    return search.by_compute((examples,), (epsilon,)).where(limits="")


def smaller_models(search: TrainingSearch) -> Judgement:
    """Compare best models with those of 20 tokens a parameter, at 1e8 examples."""
    ratios, numbers = [], []
    for epsilon in EPSILONS:
        table = inside(search, 1e8, epsilon)
        if len(table):
            without = np.sqrt(table["compute"] / (FLOPS * CHINCHILLA))
            ratios.append(float(np.median(without / table["parameters"])))
            words = f"times smaller than with {CHINCHILLA:g} tokens a parameter, median at epsilon {epsilon:g}"
            last = f"best parameters at {in_words(table['compute'][-1])} FLOPs, epsilon {epsilon:g}"
            numbers += [(words, in_words(ratios[-1])), (last, in_words(table["parameters"][-1]))]
    if not ratios:
        return not_reached("every best training at 1e8 examples is at an end of the grid")
    return judged(min(ratios) >= 10, "the median ratio over computes, at each epsilon, to be 10 at least", numbers)


def saturation(search: TrainingSearch) -> Judgement:
    """Compare saturating computes of budgets that differ in examples or epsilon alone."""
    table = saturating_table(search)
    table = table.where(limits="") if len(table) else table
    found = {(row["examples"], row["epsilon"]): row["compute"] for row in table.rows()}
    pairs = [
        (compute, larger)
        for (examples, epsilon), compute in found.items()
        for (more, weaker), larger in found.items()
        if (more == examples and weaker > epsilon) or (more > examples and weaker == epsilon)
    ]
    if not pairs:
        return not_reached("no two budgets saturate inside of the grid")
    share = float(np.mean([compute <= larger for compute, larger in pairs]))
    numbers = (
        ("budgets that saturate inside of the grid", str(len(found))),
        ("pairs that differ in one budget, of which the larger needs no less compute", f"{share:.0%} of {len(pairs)}"),
        ("saturating computes (FLOPs)", span(min(found.values()), max(found.values()))),
    )
    return judged(share >= MOST, "80 % of pairs to be in this order", numbers)


def tokens(search: TrainingSearch) -> Judgement:
    """Follow tokens a parameter by compute, at 1e7 examples."""
    tables = {epsilon: inside(search, 1e7, epsilon) for epsilon in (1.0, 10.0, 1000.0)}
    tables = {epsilon: table for epsilon, table in tables.items() if len(table) >= FEW}
    if not {1.0, 10.0} & set(tables):
        return not_reached("fewer than three computes have best trainings inside of the grid")
    numbers, holds = [], []
    for epsilon, table in tables.items():
        each = table["tokens_per_parameter"]
        slope = float(np.polyfit(np.log(table["compute"]), np.log(each), 1)[0])
        numbers += [
            (f"tokens a parameter at epsilon {epsilon:g}", span(each.min(), each.max())),
            (f"exponent of compute in them, epsilon {epsilon:g}", in_words(slope)),
        ]
        if epsilon <= 10:
            holds.append(slope > 0 and float(np.mean((each >= 1e3) & (each <= 1e5))) >= MOST)
    why = "at epsilon 1 and 10 a positive exponent, and 80 % of computes between 1e3 and 1e5"
    return judged(all(holds), why, numbers)


def baselines(search: TrainingSearch) -> Judgement:
    """Compare trainings that are fixed beforehand with the best ones, by epsilon."""
    compute = shown_computes(search.surface)[1]
    table = baseline_table(search)
    fixed, chosen = table.where(fixed=1.0), table.where(fixed=0.0, compute=compute)
    if not np.isfinite(fixed["loss"]).any() or not np.isfinite(chosen["loss"]).any():
        return not_reached("no fixed training is inside of the grid")
    best = fixed.where(epsilon=4.0)["loss"]
    least = np.inf
    if np.isfinite(best).any():
        enough = [
            one
            for one in np.geomspace(compute / 1e3, compute, 61)
            if search.best(Budget(BASELINE_EXAMPLES, 4.0, DELTA, float(one)))["loss"] <= np.nanmin(best)
        ]
        least = min(enough, default=np.inf)
    saved = compute / least
    losses = {name: fixed.where(training=name)["loss"] for name in fixed.values("training")}
    excess = {name: np.nanmax(loss / chosen["loss"]) for name, loss in losses.items() if np.isfinite(loss).any()}
    numbers = (
        (f"compute saved at epsilon 4 against the best fixed training of {in_words(compute)} FLOPs", in_words(saved)),
        *((f"most by which {name} is worse than the best", f"{value - 1:.1%}") for name, value in excess.items()),
    )
    holds = saved >= 5 and min(excess.values()) > 1.01
    return judged(holds, "5 times saved, and each fixed training 1 % worse at some epsilon", numbers)


def typical(search: TrainingSearch) -> Judgement:
    """Average best steps and batches over budgets, and compare what a wrong choice of each costs."""
    tables = [inside(search, examples, epsilon) for examples in EXAMPLES for epsilon in EPSILONS]
    steps, batches = (np.concatenate([table[name] for table in tables]) for name in ("steps", "batch_size"))
    if len(steps) < FEW:
        return not_reached("fewer than three budgets have best trainings inside of the grid")
    costs = _costs(search, Budget(1e7, 4.0, DELTA, shown_computes(search.surface)[1]))
    numbers = (
        ("median best steps", in_words(float(np.median(steps)))),
        ("median best batch", in_words(float(np.median(batches)))),
        *((f"loss added by a choice of {name} 4 times off", f"{cost:.1%}") for name, cost in costs.items()),
    )
    holds = (
        3e3 <= np.median(steps) <= 3e4
        and 1e4 <= np.median(batches) <= 1e5
        and costs["batch size"] == max(costs.values())
    )
    why = "median steps of 3,000 to 30,000, median batches of 1e4 to 1e5, and the batch to cost most when 4 times off"
    return judged(bool(holds), why, numbers)


def _costs(search: TrainingSearch, budget: Budget) -> dict[str, float]:
    """Say what a choice that is 4 times off costs, the others being best for it: the worse of both ways, relative."""
    found = search.candidates(budget)
    loss = np.where(np.isfinite(found.loss), found.loss, np.inf)
    best = int(np.argmin(loss))
    costs = {}
    for name in CHOICES:
        values = getattr(found, name) / getattr(found, name)[best]
        off = [loss[(values >= factor / 1.1) & (values <= factor * 1.1)] for factor in (0.25, 4.0)]
        least = [one.min() for one in off if len(one) and np.isfinite(one.min())]
        costs[name.replace("_", " ")] = max(least, default=np.nan) / loss[best] - 1
    return costs


def noiseless_optima(search: TrainingSearch) -> Judgement:
    """Find the best models by compute without noise, at the batch size of the measurements."""
    surface = search.surface
    sizes = np.geomspace(surface.parameters[0], surface.parameters[-1], 200)
    found = []
    for compute in computes_of(surface, 400) / 2.0**15:
        steps = compute / (FLOPS * sizes * surface.batch_size * surface.length)
        loss = surface.predict(sizes, steps, 0.0)
        known = np.flatnonzero(np.isfinite(loss))
        if len(known) and known[0] < (best := int(np.nanargmin(loss))) < known[-1]:
            found.append((compute, sizes[best]))
    if len(found) < FEW:
        return not_reached("fewer than three computes have a best model inside of the grid")
    compute, parameters = np.array(found).T
    slope = float(np.polyfit(np.log(compute), np.log(parameters), 1)[0])
    each = compute / (FLOPS * parameters**2)
    numbers = (
        ("exponent of compute in the best parameters (one half is equal proportion)", in_words(slope)),
        ("tokens a parameter", span(each.min(), each.max())),
        ("computes (FLOPs)", span(compute[0], compute[-1])),
    )
    why = "an exponent of 0.35 to 0.65, and a median of more than 20 tokens a parameter"
    return judged(bool(0.35 <= slope <= 0.65 and np.median(each) > 20), why, numbers)
