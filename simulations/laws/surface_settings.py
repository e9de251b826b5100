"""How a surface of losses is fitted."""

from dataclasses import dataclass
from typing import Literal

from fedlm.fl_core.errors import ConfigurationError
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
    rolling: float = 10 / 1280
    """With the method paper: each loss is averaged with those before it, so many blocks or such a share of them."""
    drop_before: float = 1000 / 128_000
    """With the method code: losses of earlier steps are dropped, those of the warm-up."""
    extrapolate_from: float = 16_000 / 128_000
    """Losses from here on determine how the loss goes on beyond the longest training."""
    doublings: int = 6
    """How often the longest training is doubled at most, by extrapolation."""
    kept_steps: int = 96
    """The grid keeps so many of the measured steps, evenly spaced in their logarithm; all where there are no more."""
    dense_form: Literal["mckenna_l1", "mckenna_l2"] | None = None
    """With the method two-stage: the parametric law by which the grid is filled in between sizes and ratios. None: it
    is filled in along the steps alone."""
    draws: int = 100
    """Fits to losses drawn anew, which give the bands of predictions; 0 for none."""
    seed: int = 0
    """Root of the draws' random numbers."""
    batch_size: int | None = None
    """Which trainings are fitted; needed where the measurements have several batch sizes."""

    def __post_init__(self) -> None:
        for name, least in (
            ("rolling", 0),
            ("drop_before", 0),
            ("extrapolate_from", 0),
            ("doublings", 0),
            ("draws", 0),
        ):
            if not getattr(self, name) >= least:
                raise ConfigurationError(f"{name} is {getattr(self, name)}, but must be at least {least}")
        if self.dense_form is not None and self.method != "two-stage":
            raise ConfigurationError(f"dense_form is {self.dense_form}, but is of the method two-stage alone")
        if self.kept_steps < 8:
            raise ConfigurationError(f"kept_steps is {self.kept_steps}, but must be at least 8")


def amount(setting: float, whole: float) -> float:
    """Return a setting that is a share of the whole where it is below 1, else an amount."""
    return setting * whole if setting < 1 else setting
