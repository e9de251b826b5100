"""The least compute that saturates each budget, and its best training: McKenna et al. 2025, table 2."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import calibrate
from fedlm.simulations.laws.figures.search import DELTA, EPSILONS, TrainingSearch
from fedlm.simulations.laws.figures.table import Progress, Table, in_words, no_progress, table_of
from fedlm.simulations.laws.planning.central_planner import FLOPS
from fedlm.simulations.laws.planning.configurations import saturates_at

EXAMPLES = (1e5, 1e6, 1e7, 1e8, 1e9)


SHOWN = {
    **{"examples": "examples N", "epsilon": "epsilon", "compute": "compute C (FLOPs)", "loss": "loss"},
    **{"parameters": "parameters M", "steps": "steps T", "batch_size": "batch B", "tokens_per_parameter": "tokens / M"},
    **{"noise_multiplier": "noise multiplier", "noise_batch_ratio": "noise / B", "limits": "at an end of the grid"},
}
"""The columns that people see, with their headings."""


def shown_cell(value: float | str | None) -> str:
    """Write a cell of the table for people, numbers in three digits."""
    return value if isinstance(value, str) else in_words(math.nan if value is None else value)


class PublishedRow(NamedTuple):
    """A row of the paper's table, in its two digits."""

    examples: float
    epsilon: float
    compute: float
    loss: float
    parameters: float
    steps: float
    batch_size: float
    tokens_per_parameter: float


def saturating_table(
    search: TrainingSearch,
    examples: Sequence[float] = EXAMPLES,
    epsilons: Sequence[float] = EPSILONS,
    progress: Progress = no_progress,
) -> Table:
    """Tabulate the least compute whose best loss is within 1 % of that of all computes, and the best training there.

    The noise multiplier is the accountant's, of what would be run: whole examples and steps. Budgets that are outside
    of the grid at every compute are left out.
    """
    rows = []
    lines = list(product(examples, epsilons))
    for done, (number, epsilon) in enumerate(lines, 1):
        table = search.by_compute((number,), (epsilon,))
        if (at := saturates_at(table["loss"])) is not None:
            rows.append(_row({name: column[at] for name, column in table.columns.items()}, at == len(table) - 1))
        progress(done, len(lines))
    return table_of(rows)


_COPIED = (
    *("examples", "epsilon", "delta", "compute", "loss", "loss_low", "loss_high", "parameters", "steps", "batch_size"),
    "tokens_per_parameter",
)


def _row(best: dict[str, Any], last: bool) -> dict[str, Any]:
    batch_size, steps = round(best["batch_size"]), round(best["steps"])
    noise = exact_noise_multiplier(int(best["examples"]), batch_size, steps, best["epsilon"])
    return {name: best[name] for name in _COPIED} | {
        "noise_multiplier": noise,
        "noise_batch_ratio": noise / batch_size,
        "limits": ", ".join(filter(None, (best["limits"], "most compute" if last else ""))),
    }


def exact_noise_multiplier(examples: int, batch_size: int, steps: int, epsilon: float) -> float:
    """Find the least noise of DP-SGD with Poisson sampling for an epsilon at `DELTA`, as `fedlm pretrain` adds it.

    Returns:
      The standard deviation of the noise on a step's sum in clip norms, rounded up at four digits; add-or-remove.

    Raises:
      ConfigurationError: a number is out of range.
    """
    return calibrate(lambda noise: central_plan(examples, batch_size, steps, noise), DELTA, epsilon).noise_multiplier


PUBLISHED = tuple(
    PublishedRow(*row)
    for row in (
        (1e5, 1, 1.3e16, 7.28, 4.6e6, 1.8e3, 5.1e2, 1.0e2),
        (1e5, 4, 1.1e17, 6.65, 4.6e6, 1.8e3, 4.1e3, 8.5e2),
        (1e5, 16, 2.0e18, 5.60, 1.7e7, 2.7e3, 1.4e4, 1.1e3),
        (1e5, 64, 7.5e18, 4.63, 2.0e7, 6.3e3, 1.9e4, 3.2e3),
        (1e6, 1, 2.8e17, 5.89, 4.6e6, 2.5e3, 8.2e3, 2.3e3),
        (1e6, 4, 8.8e18, 4.62, 1.9e7, 6.5e3, 2.3e4, 4.1e3),
        (1e6, 16, 3.3e19, 3.61, 1.7e7, 1.4e4, 4.6e4, 1.9e4),
        (1e6, 64, 3.2e20, 2.82, 4.9e7, 1.2e4, 1.9e5, 2.2e4),
        (1e7, 1, 3.8e19, 3.73, 1.7e7, 9.6e3, 7.8e4, 2.3e4),
        (1e7, 4, 3.8e20, 2.81, 4.9e7, 1.1e4, 2.2e5, 2.6e4),
        (1e7, 16, 2.0e21, 2.15, 7.0e7, 1.2e4, 7.4e5, 6.7e4),
        (1e7, 64, 4.4e22, 1.66, 3.3e8, 4.9e4, 8.8e5, 6.7e4),
        (1e8, 1, 5.2e21, 2.26, 1.3e8, 5.8e4, 2.2e5, 4.9e4),
        (1e8, 4, 4.4e22, 1.66, 3.3e8, 4.9e4, 8.8e5, 6.7e4),
        (1e8, 16, 1.0e23, 1.32, 3.3e8, 9.3e4, 1.0e6, 1.5e5),
        (1e8, 64, 1.0e23, 1.23, 3.3e8, 1.1e5, 8.8e5, 1.5e5),
        (1e9, 1, 8.5e22, 1.36, 3.3e8, 9.4e4, 8.8e5, 1.3e5),
        (1e9, 4, 1.0e23, 1.23, 3.3e8, 1.1e5, 8.8e5, 1.5e5),
        (1e9, 16, 1.0e23, 1.22, 3.3e8, 1.1e5, 8.8e5, 1.5e5),
        (1e9, 64, 1.2e23, 1.20, 3.3e8, 1.1e5, 1.1e6, 1.8e5),
    )
)
"""Table 2 of McKenna et al. 2025. Those with 3.3e8 parameters end at the largest model that was trained."""


def published_table(
    examples: Sequence[float] = EXAMPLES, epsilons: Sequence[float] = EPSILONS, progress: Progress = no_progress
) -> Table:
    """Tabulate the paper's rows with what follows from each exactly: the accountant's noise multiplier and ratio at
    delta 1e-8, the compute 6 M B S T and the tokens a parameter that its own choices mean, S being 512.

    Raises:
      ConfigurationError: it has none of the examples with none of the epsilons.
    """
    rows = []
    chosen = [row for row in PUBLISHED if row.examples in examples and row.epsilon in epsilons]
    if not chosen:
        raise ConfigurationError("the published table has none of these examples and epsilons; give a file of laws")
    for done, row in enumerate(chosen, 1):
        noise = exact_noise_multiplier(int(row.examples), int(row.batch_size), int(row.steps), row.epsilon)
        tokens = row.batch_size * row.steps * 512
        rows.append(
            {**row._asdict(), "delta": DELTA, "noise_multiplier": noise, "noise_batch_ratio": noise / row.batch_size}
            | {"compute_of_choices": FLOPS * row.parameters * tokens}
            | {"tokens_per_parameter_of_choices": tokens / row.parameters}
        )
        progress(done, len(chosen))
    return table_of(rows)
