"""What a training that is fixed beforehand loses against the best one."""

import numpy as np

from fedlm.simulations.laws.figures.baselines import EXAMPLES, baseline_table
from fedlm.simulations.laws.figures.searching import DELTA, TrainingSearch, shown_computes
from fedlm.simulations.laws.figures.tables import in_words
from fedlm.simulations.laws.findings.finding import Finding, judged
from fedlm.simulations.laws.plan import Budget


def baselines(search: TrainingSearch) -> Finding:
    """Test what FINDINGS has it for."""
    claim = (
        "The best training at 2e18 FLOPs is as good as the best fixed one at 1e19, at 1e7 examples: 5 times less "
        "compute; and no fixed training is the best at every epsilon (section 4.4)."
    )
    compute = shown_computes(search.surface)[1]
    table = baseline_table(search)
    fixed, chosen = table.where(fixed=1.0), table.where(fixed=0.0, compute=compute)
    if not np.isfinite(fixed["loss"]).any() or not np.isfinite(chosen["loss"]).any():
        return Finding(5, claim, "not reached", "no fixed training is inside of the grid")
    best = fixed.where(epsilon=4.0)["loss"]
    least = np.inf
    if np.isfinite(best).any():
        enough = [
            one
            for one in np.geomspace(compute / 1e3, compute, 61)
            if search.best(Budget(EXAMPLES, 4.0, DELTA, float(one)))["loss"] <= np.nanmin(best)
        ]
        least = min(enough, default=np.inf)
    saved = compute / least
    excess = {
        name: np.nanmax(fixed.where(training=name)["loss"] / chosen["loss"])
        for name in fixed.values("training")
        if np.isfinite(fixed.where(training=name)["loss"]).any()
    }
    numbers = (
        (f"compute saved at epsilon 4 against the best fixed training of {in_words(compute)} FLOPs", in_words(saved)),
        *((f"most by which {name} is worse than the best", f"{value - 1:.1%}") for name, value in excess.items()),
    )
    holds = saved >= 5 and min(excess.values()) > 1.01
    return Finding(5, claim, judged(holds), "5 times saved, and each fixed training 1 % worse at some epsilon", numbers)
