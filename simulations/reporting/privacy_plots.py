"""Mechanisms side by side: what they spend over rounds, and how noisy their running sums are at equal privacy."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fl_core.errors import ConfigurationError
from fl_core.privacy.accounting import account, calibrate
from fl_core.privacy.participation import BoundedParticipation
from fl_core.privacy.plan import TOEPLITZ, MechanismName, PrivacyPlan
from fl_core.privacy.prefix_error import prefix_variance
from fl_core.privacy.toeplitz_sensitivity import banded_coefficients, blt_coefficients
from simulations.reporting.plot_style import FAMILIES, GRID, MUTED, new_figure

_LABELS: dict[MechanismName, str] = {
    "gaussian": "independent",
    "tree": "tree",
    "tree_honaker": "tree, Honaker",
    "blt": "BLT",
    "banded": "banded",
}
_POINTS = 24
_FORMATS = (".png", ".svg", ".pdf")


def plot_mechanisms(
    rounds: int,
    max_participations: int | None,
    min_separation: int,
    epsilon: float,
    delta: float,
    out: Path,
) -> None:
    """Draw epsilon against rounds, and the error of running sums, of all mechanisms with noise for one epsilon.

    Args:
      rounds: T.
      max_participations: k.
      min_separation: b.
      epsilon: after the last round, of every mechanism.
      delta: at which.
      out: a .png, .svg or .pdf file.

    Raises:
      ConfigurationError: the file's name ends otherwise, or there is no plan for the numbers.
    """
    if out.suffix not in _FORMATS:
        raise ConfigurationError(f"{out}: a picture's name must end in one of {', '.join(_FORMATS)}")
    participation = BoundedParticipation(max_participations, min_separation)
    plans = {name: _calibrated(name, rounds, participation, epsilon, delta) for name in _LABELS}
    figure = new_figure(5.6)
    spent, error = figure.subplots(2, 1, sharex=True)
    steps = np.unique(np.linspace(1, rounds, min(_POINTS, rounds)).astype(int))
    for (name, plan), colour in zip(plans.items(), FAMILIES, strict=False):
        line = {"color": colour, "linewidth": 1.6, "label": _LABELS[name]}
        spent.plot(steps, [account(plan, delta, [(0, int(step))]).epsilon for step in steps], **line)
        error.plot(np.arange(1, rounds + 1), np.sqrt(prefix_variance(plan)) * plan.noise_multiplier, **line)
    often = "as often as fits" if max_participations is None else f"at most {max_participations} times"
    spent.set_title(
        f"{rounds} rounds; a client takes part {often}, {min_separation} or more rounds apart", fontsize=9, loc="left"
    )
    spent.set_ylabel(f"epsilon at delta = {delta:g}")
    error.set_ylabel("noise in the running sum\n(standard deviation, clip norms)")
    error.set_xlabel("round")
    error.set_yscale("log")
    error.legend(fontsize=8, frameon=False, ncols=3)
    for axes in (spent, error):
        _tidy(axes)
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".partial-{out.name}")
    figure.savefig(beside, dpi=170, facecolor="white")
    beside.replace(out)


def _calibrated(
    name: MechanismName, rounds: int, participation: BoundedParticipation, epsilon: float, delta: float
) -> PrivacyPlan:
    coefficients: tuple[float, ...] = ()
    if name in TOEPLITZ:
        find = blt_coefficients if name == "blt" else banded_coefficients
        coefficients = find(rounds, participation)
    return calibrate(
        lambda noise: PrivacyPlan(name, rounds, noise, participation, coefficients=coefficients), delta, epsilon
    )


def _tidy(axes: Axes) -> None:
    axes.grid(color=GRID, linewidth=0.8)
    axes.tick_params(labelsize=8, colors=MUTED)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
