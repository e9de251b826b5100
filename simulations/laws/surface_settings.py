"""How a surface of losses is fitted."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, CountOrZero, NotNegative, Range, Seed
from fedlm.simulations.laws.smoothing import Smoothing
from fedlm.simulations.laws.surface import Interpolation, Method


@dataclass(frozen=True)
class SurfaceSettings:
    """How losses are smoothed, extrapolated and drawn anew.

    Thresholds are shares of the longest training where they are below 1, else steps. The defaults are the published
    ones as shares, so that trainings of any length are treated alike; the interpolation alone is another one.
    """

    method: Method = "paper"
    """paper: as McKenna et al. 2025 word it. code: as their public code does it. two-stage: as the VaultGemma report
    has it, by the final losses of trainings of several lengths."""
    interpolation: Interpolation = "monotone-cubic"
    """How predictions lie between the grid's sizes and ratios, in the logarithms. monotone-cubic: on cubics that rise
    and fall with the points. linear: as published, for the paper's table and figures; farther off where points are far
    apart."""
    smoothing: Smoothing = "isotonic"
    """How losses are smoothed along the steps. A cumulative minimum is too low where losses are noisy."""
    rolling: NotNegative = 10 / 1280
    """With the method paper: each loss is averaged with those before it, so many blocks or such a share of them."""
    drop_before: NotNegative = 1000 / 128_000
    """With the method code: losses of earlier steps are dropped, those of the warm-up."""
    extrapolate_from: NotNegative = 16_000 / 128_000
    """Losses from here on determine how the loss goes on beyond the longest training."""
    doublings: Annotated[int, Range(least=0, most=64)] = 6
    """How often the longest training is doubled at most, by extrapolation."""
    kept_steps: Annotated[int, Range(least=8, most=1 << 20)] = 96
    """The grid keeps so many of the measured steps, evenly spaced in their logarithm; all where there are no more."""
    dense_form: Literal["mckenna_l1", "mckenna_l2"] | None = None
    """With the method two-stage: the parametric law by which the grid is filled in between sizes and ratios. None: it
    is filled in along the steps alone."""
    draws: CountOrZero = 100
    """Fits to losses drawn anew, which give the bands of predictions; 0 for none."""
    seed: Seed = 0
    """Root of the draws' random numbers."""
    batch_size: Count | None = None
    """Which trainings are fitted; needed where the measurements have several batch sizes."""

    def __post_init__(self) -> None:
        check_value_types(self)
        if self.dense_form is not None and self.method != "two-stage":
            raise ConfigurationError(
                f"{setting('dense_form')} is {self.dense_form}, but is of the method two-stage alone"
            )


def amount(setting: float, whole: float) -> float:
    """Return a setting that is a share of the whole where it is below 1, else an amount."""
    return setting * whole if setting < 1 else setting
