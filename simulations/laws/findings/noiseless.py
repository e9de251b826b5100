"""What is best to train without noise."""

import numpy as np

from fedlm.simulations.laws.figures.searching import computes_of
from fedlm.simulations.laws.figures.tables import in_words
from fedlm.simulations.laws.findings.finding import FEW, Finding, judged
from fedlm.simulations.laws.plan import FLOPS
from fedlm.simulations.laws.surface import LossSurface


def noiseless_optima(surface: LossSurface) -> Finding:
    """Test what FINDINGS has it for, at the batch size of the measurements."""
    claim = (
        "Without noise the best parameters and tokens grow in about equal proportion with compute, and tokens are "
        "more than 20 a parameter (appendix C.6)."
    )
    sizes = np.geomspace(surface.parameters[0], surface.parameters[-1], 200)
    found = []
    for compute in computes_of(surface, 400) / 2.0**15:
        steps = compute / (FLOPS * sizes * surface.batch_size * surface.length)
        loss = surface.predict(sizes, steps, 0.0)
        known = np.flatnonzero(np.isfinite(loss))
        if len(known) and known[0] < (best := int(np.nanargmin(loss))) < known[-1]:
            found.append((compute, sizes[best]))
    if len(found) < FEW:
        why = "fewer than three computes have a best model inside of the grid"
        return Finding(9, claim, "not reached", why)
    compute, parameters = np.array(found).T
    slope = float(np.polyfit(np.log(compute), np.log(parameters), 1)[0])
    tokens = compute / (FLOPS * parameters**2)
    numbers = (
        ("exponent of compute in the best parameters (one half is equal proportion)", in_words(slope)),
        ("tokens a parameter", f"{in_words(tokens.min())} to {in_words(tokens.max())}"),
        ("computes (FLOPs)", f"{in_words(compute[0])} to {in_words(compute[-1])}"),
    )
    why = "an exponent of 0.35 to 0.65, and a median of more than 20 tokens a parameter"
    return Finding(9, claim, judged(bool(0.35 <= slope <= 0.65 and np.median(tokens) > 20)), why, numbers)
