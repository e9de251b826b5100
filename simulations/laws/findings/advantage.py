"""What equal epsilons leave open: how well an attacker can tell who was in the data."""

import numpy as np

from fedlm.simulations.laws.figures.advantage_by_batch import advantage_table, trainings_of
from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.tables import in_words
from fedlm.simulations.laws.findings.finding import Finding, judged

_SAME = 1.05  # times the least loss, which counts as nearly the same
_APART = 1.2  # times the least advantage


def advantage_by_batch(evidence: Evidence) -> Finding:
    """Test what FINDINGS has it for; the advantages are exact."""
    claim = (
        "At equal epsilon, delta and compute the advantage of membership inference differs with the batch, where the "
        "loss is nearly the same (appendix D)."
    )
    table = advantage_table(
        evidence.losses, trainings=trainings_of(evidence.search.surface if evidence.search else None)
    )
    numbers, factors = [], []
    for training in table.values("compute"):
        part = table.where(compute=training)
        words = f"{in_words(training)} FLOPs, {in_words(part['parameters'][0])} parameters"
        every = part["membership_advantage"]
        numbers.append((f"advantage over all batches, {words}", f"{in_words(every.min())} to {in_words(every.max())}"))
        if np.isfinite(part["loss"]).any():
            same = every[part["loss"] <= _SAME * np.nanmin(part["loss"])]
            factors.append(same.max() / same.min())
            numbers.append(
                (
                    f"where the loss is within 5 % of the least, {words}",
                    f"{in_words(same.min())} to {in_words(same.max())}",
                )
            )
    if not factors:
        why = "no loss of these trainings is inside of the grid; the advantages alone are known, and exact"
        return Finding(10, claim, "not reached", why, tuple(numbers))
    why = "the advantage to differ by a fifth where losses are within 5 %"
    return Finding(10, claim, judged(max(factors) >= _APART), why, tuple(numbers))
