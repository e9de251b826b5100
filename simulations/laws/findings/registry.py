"""Findings 1 to 10 of McKenna et al. 2025, tested on laws."""

from collections.abc import Callable

from fedlm.simulations.laws.figures.figure import Evidence
from fedlm.simulations.laws.figures.searching import TrainingSearch
from fedlm.simulations.laws.figures.tables import Progress, no_progress
from fedlm.simulations.laws.findings import advantage, best_trainings, fixed_trainings, measured, noise, noiseless
from fedlm.simulations.laws.findings.finding import Finding

FINDINGS: dict[int, Callable[[TrainingSearch, Evidence], Finding]] = {
    1: lambda search, evidence: best_trainings.smaller_models(search),
    2: lambda search, evidence: noise.larger_epsilon(search),
    3: lambda search, evidence: best_trainings.saturation(search),
    4: lambda search, evidence: best_trainings.tokens(search),
    5: lambda search, evidence: fixed_trainings.baselines(search),
    6: lambda search, evidence: noise.doubling(),
    7: lambda search, evidence: best_trainings.typical(search),
    8: lambda search, evidence: measured.physical_batches(evidence.measurements),
    9: lambda search, evidence: noiseless.noiseless_optima(search.surface),
    10: lambda search, evidence: advantage.advantage_by_batch(evidence),
}


def judge_findings(evidence: Evidence, progress: Progress = no_progress) -> list[Finding]:
    """Test the findings on laws with a surface, where the best training is not at an end of the grid.

    Args:
      evidence: the laws, and the measurements where they are at hand.
      progress: told of each finding.

    Raises:
      ConfigurationError: there is no surface.
    """
    search = evidence.searching()
    findings = []
    for done, judge in enumerate(FINDINGS.values(), 1):
        findings.append(judge(search, evidence))
        progress(done, len(FINDINGS))
    return findings
