"""The pictures of scaling laws by name: a new one is an entry."""

from fedlm.simulations.laws.figures import allocation, choices, measured, noise
from fedlm.simulations.laws.figures.figure import Evidence, LawFigure
from fedlm.simulations.laws.figures.search import EXAMPLES
from fedlm.simulations.laws.figures.table import Progress, Table

_FAINT = "Faint lines: the best training lies at an end of the grid, where a larger grid might have a better one."
_BANDS = f"Shaded: for the loss, its band of 90 %; for the choices, where the loss is within 1 % of the best. {_FAINT}"


def _advantage(evidence: Evidence, progress: Progress) -> Table:
    surface = None if evidence.search is None else evidence.search.surface
    trainings = noise.trainings_of(surface)
    return noise.advantage_table(evidence.losses, progress, trainings=trainings)


_ALL = (
    LawFigure(
        "figure1",
        f"What to train for a compute at 100 million examples (McKenna et al. 2025, figure 1). {_BANDS}",
        lambda evidence, progress: evidence.searching().by_compute((1e8,), progress=progress),
        allocation.draw_allocation,
        surface=True,
    ),
    LawFigure(
        "figure3",
        "Best loss by compute, and tokens a parameter (McKenna et al. 2025, figure 3). A ring marks the least compute "
        f"whose loss is within 1 % of the best, with its parameters. {_FAINT}",
        lambda evidence, progress: allocation.saturation_table(evidence.searching(), progress),
        allocation.draw_saturation,
        surface=True,
    ),
    LawFigure(
        "figure4",
        "What doubling each of two budgets takes off the noise-batch ratio (McKenna et al. 2025, figure 4): accounting "
        "alone, for Poisson sampling, add-or-remove of an example. Length 1 halves the ratio.",
        lambda evidence, progress: noise.noise_field_table(),
        noise.draw_noise_fields,
    ),
    LawFigure(
        "figure5",
        "Loss by epsilon of the best training at a compute, at a fifth of it, and of fixed trainings at that compute "
        "(McKenna et al. 2025, figure 5).",
        lambda evidence, progress: choices.baseline_table(evidence.searching(), progress),
        choices.draw_baselines,
        surface=True,
    ),
    LawFigure(
        "figure6",
        "What a wrong choice of steps, parameters or batch costs, the others being chosen best for it (McKenna et al. "
        "2025, figure 6).",
        lambda evidence, progress: choices.one_choice_table(evidence.searching(), progress),
        choices.draw_one_choice,
        surface=True,
        wide=True,
    ),
    LawFigure(
        "figure13",
        f"As figure 1, for 1 million to 1 billion examples (McKenna et al. 2025, figure 13). {_BANDS}",
        lambda evidence, progress: evidence.searching().by_compute(EXAMPLES, progress=progress),
        allocation.draw_allocation_by_examples,
        surface=True,
        wide=True,
    ),
    LawFigure(
        "figure15",
        "What an attacker can gain over a guess of one example's membership, by the batch, at equal epsilon and "
        "compute: delta at epsilon 0 of the privacy profile, an upper bound (McKenna et al. 2025, figure 15, which "
        "does not say its number of examples). With a surface that reaches there, the loss too.",
        _advantage,
        noise.draw_advantage,
    ),
    LawFigure(
        "kaplan",
        "Loss without noise by parameters, training tokens and compute, with the power laws of Kaplan et al. 2020 "
        "fitted to it. The published exponents are of other text and tokens, and of far larger models.",
        lambda evidence, progress: measured.power_law_table(evidence.measured(), evidence.forms),
        measured.draw_power_laws,
        measurements=True,
    ),
    LawFigure(
        "vaultgemma",
        "Loss of the longest runs by learning rate. A ring is the vertex of the parabola, which is taken as the best "
        "rate; none where the least loss is not between the rates (VaultGemma 2025, section 6).",
        lambda evidence, progress: measured.rate_table(evidence.measured()),
        measured.draw_rates,
        measurements=True,
        wide=True,
    ),
)

FIGURES: dict[str, LawFigure] = {figure.name: figure for figure in _ALL}
