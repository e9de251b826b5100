"""Mechanisms side by side: what they spend over rounds, and how noisy their running sums are at equal privacy."""

import itertools
import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.accounting.printed_bounds import rounded_up
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.guarantee import account, calibrate
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan, plan_noise
from fedlm.simulations.plot_style import FAMILIES, GRID, MUTED, new_figure

_POINTS = 240
_TICKS = (1, 2, 5)
_FORMATS = (".png", ".svg", ".pdf")


def plot_mechanisms(
    rounds: int,
    *,
    max_participations: int | None,
    min_separation: int,
    epsilon: float,
    delta: float,
    out: Path,
) -> None:
    """Draw the error of running sums, and epsilon against rounds, of all mechanisms of the server's noise.

    Args:
      rounds: T.
      max_participations: k.
      min_separation: b.
      epsilon: the same after the last round, of every mechanism that takes so many rounds.
      delta: at which.
      out: a .png, .svg or .pdf file.

    Raises:
      ConfigurationError: the file's name ends otherwise, or there is no plan for the numbers.
    """
    if out.suffix not in _FORMATS:
        raise ConfigurationError(f"{out}: a picture's name must end in one of {', '.join(_FORMATS)}")
    participation = BoundedParticipation(max_participations, min_separation)
    plans = [
        calibrate(plan_noise(name, rounds, participation), delta, epsilon)
        for name, mechanism in MECHANISMS.items()
        if rounds <= (mechanism.most_rounds or rounds) and not mechanism.distributed
    ]
    figure = new_figure(6.4)
    error, spent = figure.subplots(2, 1, sharex=True)
    often = "any number of times" if max_participations is None else f"at most {max_participations} times"
    figure.suptitle(
        f"{rounds:,} rounds; a client takes part {often}, in rounds whose numbers differ by {min_separation} or more",
        fontsize=9,
        color=MUTED,
        x=0.01,
        ha="left",
    )
    _draw_error(error, plans, epsilon, delta)
    _draw_spent(spent, plans, delta)
    for axes in (error, spent):
        _tidy(axes, rounds)
    make_folder(out.parent)
    beside = out.with_name(f".partial-{out.name}")
    figure.savefig(beside, dpi=170, facecolor="white")
    beside.replace(out)


def _draw_error(axes: Axes, plans: list[PrivacyPlan], epsilon: float, delta: float) -> None:
    axes.set_title(
        f"Noise in the model, all at epsilon {rounded_up(epsilon)} (delta {rounded_up(delta)}): lower is better",
        fontsize=10,
        loc="left",
    )
    axes.set_ylabel("noise in the sum of all rounds so far\n(standard deviation, clip norms)", fontsize=8)
    axes.set_yscale("log")
    ends = {}
    for plan, colour in zip(plans, itertools.cycle(FAMILIES), strict=False):
        mechanism = MECHANISMS[plan.mechanism]
        deviation = np.sqrt(mechanism.prefix_variance(plan)) * plan.noise_multiplier
        steps = np.arange(1, plan.rounds + 1)
        if mechanism.uneven:
            # A tree's noise falls whenever a large node is complete; the eye needs its level.
            axes.plot(steps, deviation, color=colour, linewidth=0.7, alpha=0.3)
            deviation = _smooth(deviation)
        axes.plot(steps, deviation, color=colour, linewidth=1.8)
        ends[mechanism.label] = (float(deviation[-1]), colour)
    axes.yaxis.set_major_locator(LogLocator(subs=_TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _name_lines(axes, ends)


def _draw_spent(axes: Axes, plans: list[PrivacyPlan], delta: float) -> None:
    axes.set_title("Privacy spent once the model of a round is released", fontsize=10, loc="left")
    axes.set_ylabel(f"epsilon\n(at delta {rounded_up(delta)})", fontsize=8)
    axes.set_xlabel("round", fontsize=8)
    drawn: list[list[float]] = []
    for plan, colour in zip(plans, itertools.cycle(FAMILIES), strict=False):
        steps = np.unique(np.linspace(1, plan.rounds, min(_POINTS, plan.rounds)).astype(int))
        epsilons = [account(plan, delta, [(0, int(step))]).epsilon for step in steps]
        # Both trees spend the same: the dashes of one show the other.
        dashes = (0, (4, 4)) if epsilons in drawn else "-"
        drawn.append(epsilons)
        axes.step(steps, epsilons, where="post", color=colour, linewidth=1.8, linestyle=dashes)
    axes.set_ylim(bottom=0)


def _name_lines(axes: Axes, ends: dict[str, tuple[float, str]]) -> None:
    """Write each line's name beside its end, moved up or down a little where they would overlap."""
    low, high = np.log(axes.get_ylim())
    least = 0.075
    place = -math.inf
    for label, (value, colour) in sorted(ends.items(), key=lambda entry: entry[1][0]):
        place = max((math.log(value) - low) / (high - low), place + least)
        axes.text(1.015, place, label, color=colour, fontsize=9, va="center", transform=axes.transAxes)


def _smooth(values: np.ndarray) -> np.ndarray:
    """The root mean square over neighbours on both sides, which leaves out how a tree's noise goes up and down."""
    places = np.arange(len(values))
    reach = np.minimum(np.minimum(places, places[::-1]), max(1, len(values) // 8))
    sums = np.append(0.0, np.cumsum(values**2))
    return np.sqrt((sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1))


def _tidy(axes: Axes, rounds: int) -> None:
    axes.set_xlim(0, rounds)
    axes.grid(color=GRID, linewidth=0.8)
    axes.tick_params(which="both", labelsize=8, colors=MUTED)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
