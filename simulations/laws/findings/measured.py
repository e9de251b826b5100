"""What only measurements tell: losses by physical batch size at equal noise-batch ratios."""

import numpy as np

from fedlm.simulations.laws.figures.tables import in_words
from fedlm.simulations.laws.findings.finding import Finding, judged
from fedlm.simulations.laws.forms.rows import best_rate, final
from fedlm.simulations.laws.measurements import Measurements


def physical_batches(measurements: Measurements | None) -> Finding:
    """Test what FINDINGS has it for, on the last losses of runs of equal steps."""
    claim = (
        "With little noise a larger physical batch is better, at a ratio of 2^-15 or more a smaller one, for the "
        "smallest model (appendix C.3)."
    )
    if measurements is None:
        return Finding(8, claim, "not reached", "the measurements are not at hand")
    rows = measurements.where(best_rate(measurements) & final(measurements))
    rows = rows.where(rows.parameters == rows.parameters.min(initial=np.iinfo(np.int64).max))
    slopes = {}
    for ratio in np.unique(rows.noise_batch_ratio):
        same = rows.where(rows.noise_batch_ratio == ratio)
        sizes = np.unique(same.batch_size)
        if len(sizes) > 1 and len(np.unique(same.steps)) == 1:
            means = [same.loss[same.batch_size == size].mean() for size in sizes]
            slopes[float(ratio)] = float(np.polyfit(np.log2(sizes), means, 1)[0])
    if len(slopes) < 2:
        return Finding(8, claim, "not reached", "there are not several batch sizes at two noise-batch ratios")
    numbers = tuple(
        (f"loss added by doubling the batch, ratio {in_words(ratio)}", f"{slope:+.4f}")
        for ratio, slope in slopes.items()
    )
    least, most = slopes[min(slopes)], slopes[max(slopes)]
    why = "doubling the batch to lower the loss at the least noise, and to raise it at the most"
    return Finding(8, claim, judged(least < 0 < most), why, numbers)
