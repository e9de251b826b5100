"""What is best to train by compute: model sizes, where compute saturates, tokens a parameter, typical choices."""

import numpy as np

from fedlm.simulations.laws.figures.saturating import saturating_table
from fedlm.simulations.laws.figures.saturation import CHINCHILLA
from fedlm.simulations.laws.figures.searching import (
    DELTA,
    EPSILONS,
    EXAMPLES,
    TrainingSearch,
    grid_of,
    shown_computes,
)
from fedlm.simulations.laws.figures.tables import Table, in_words, no_progress
from fedlm.simulations.laws.findings.finding import FEW, MOST, Finding, judged
from fedlm.simulations.laws.plan import FLOPS, Budget


def inside(search: TrainingSearch, examples: float, epsilon: float) -> Table:
    """Tabulate the best trainings by compute that are at no end of the grid."""
    return search.table(grid_of(search.computes, (examples,), (epsilon,)), no_progress).where(limits="")


def smaller_models(search: TrainingSearch) -> Finding:
    """Test what FINDINGS has it for."""
    claim = (
        "Under privacy the best model is at least 10 times smaller than without: about 1e8 parameters at 1e22 FLOPs "
        "and 1e8 examples, instead of about 1e10 (sections 1 and 4.1)."
    )
    ratios, numbers = [], []
    for epsilon in EPSILONS:
        table = inside(search, 1e8, epsilon)
        if len(table):
            without = np.sqrt(table["compute"] / (FLOPS * CHINCHILLA))
            ratio = without / table["parameters"]
            ratios.append(float(np.median(ratio)))
            words = f"times smaller than with {CHINCHILLA:g} tokens a parameter, median at epsilon {epsilon:g}"
            numbers += [
                (words, in_words(ratios[-1])),
                (
                    f"best parameters at {in_words(table['compute'][-1])} FLOPs, epsilon {epsilon:g}",
                    in_words(table["parameters"][-1]),
                ),
            ]
    if not ratios:
        return Finding(1, claim, "not reached", "every best training at 1e8 examples is at an end of the grid")
    why = "the median ratio over computes, at each epsilon, to be 10 at least"
    return Finding(1, claim, judged(min(ratios) >= 10), why, tuple(numbers))


def saturation(search: TrainingSearch) -> Finding:
    """Test what FINDINGS has it for."""
    claim = "Compute saturates, at a compute that grows with epsilon and with the examples (section 4.2, table 2)."
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
        return Finding(3, claim, "not reached", "no two budgets saturate inside of the grid")
    share = float(np.mean([compute <= larger for compute, larger in pairs]))
    numbers = (
        ("budgets that saturate inside of the grid", str(len(found))),
        ("pairs that differ in one budget, of which the larger needs no less compute", f"{share:.0%} of {len(pairs)}"),
        ("saturating computes (FLOPs)", f"{in_words(min(found.values()))} to {in_words(max(found.values()))}"),
    )
    return Finding(3, claim, judged(share >= MOST), "80 % of pairs to be in this order", numbers)


def tokens(search: TrainingSearch) -> Finding:
    """Test what FINDINGS has it for."""
    claim = (
        "Tokens a parameter rise with compute; at epsilon 1 to 10 they are 1e3 to 1e5, models 10 to 50 times smaller "
        "than with 20 tokens (section 4.3)."
    )
    tables = {epsilon: inside(search, 1e7, epsilon) for epsilon in (1.0, 10.0, 1000.0)}
    tables = {epsilon: table for epsilon, table in tables.items() if len(table) >= FEW}
    if not {1.0, 10.0} & set(tables):
        return Finding(4, claim, "not reached", "fewer than three computes have best trainings inside of the grid")
    numbers, holds = [], []
    for epsilon, table in tables.items():
        tokens = table["tokens_per_parameter"]
        slope = float(np.polyfit(np.log(table["compute"]), np.log(tokens), 1)[0])
        low, high = in_words(tokens.min()), in_words(tokens.max())
        numbers += [
            (f"tokens a parameter at epsilon {epsilon:g}", f"{low} to {high}"),
            (f"exponent of compute in them, epsilon {epsilon:g}", in_words(slope)),
        ]
        if epsilon <= 10:
            holds.append(slope > 0 and float(np.mean((tokens >= 1e3) & (tokens <= 1e5))) >= MOST)
    why = "at epsilon 1 and 10 a positive exponent, and 80 % of computes between 1e3 and 1e5"
    return Finding(4, claim, judged(all(holds)), why, tuple(numbers))


def typical(search: TrainingSearch) -> Finding:
    """Test what FINDINGS has it for."""
    claim = (
        "The best steps are typically about 10,000 and the best batch 10,000 to 100,000; the loss is most sensitive "
        "to the batch (appendix C.2)."
    )
    tables = [inside(search, examples, epsilon) for examples in EXAMPLES for epsilon in EPSILONS]
    steps, batches = (np.concatenate([table[name] for table in tables]) for name in ("steps", "batch_size"))
    if len(steps) < FEW:
        return Finding(7, claim, "not reached", "fewer than three budgets have best trainings inside of the grid")
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
    return Finding(7, claim, judged(bool(holds)), why, numbers)


def _costs(search: TrainingSearch, budget: Budget) -> dict[str, float]:
    """Say what a choice that is 4 times off costs, the others being best for it: the worse of both ways, relative."""
    found = search.candidates(budget)
    loss = np.where(np.isfinite(found.loss), found.loss, np.inf)
    best = int(np.argmin(loss))
    costs = {}
    for name in ("steps", "parameters", "batch_size"):
        values = getattr(found, name) / getattr(found, name)[best]
        off = [loss[(values >= factor / 1.1) & (values <= factor * 1.1)] for factor in (0.25, 4.0)]
        least = [one.min() for one in off if len(one) and np.isfinite(one.min())]
        costs[name.replace("_", " ")] = max(least, default=np.nan) / loss[best] - 1
    return costs
