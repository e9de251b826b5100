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
    """paper: as McKenna et al. 2025 describe it. code: as in their public code. two-stage: as in the VaultGemma report,
    from the final losses of trainings of several lengths."""
    interpolation: Interpolation = "monotone-cubic"
    """How to interpolate between the grid's sizes and ratios, in the logarithms. monotone-cubic: by cubics that rise
    and fall with the points. linear: as published, for the paper's table and figures, with larger errors where points
    are far apart."""
    smoothing: Smoothing = "isotonic"
    """How losses are smoothed along the steps. A cumulative minimum is too low where losses are noisy."""
    rolling: NotNegative = 10 / 1280
    """With the method paper: each loss is averaged with those of this many blocks before it, or of this share of
    all."""
    drop_before: NotNegative = 1000 / 128_000
    """With the method code: drop losses of earlier steps, those of the warm-up."""
    extrapolate_from: NotNegative = 16_000 / 128_000
    """The loss beyond the longest training follows from losses from here on."""
    doublings: Annotated[int, Range(least=0, most=64)] = 6
    """How often extrapolation doubles the longest training, at most."""
    kept_steps: Annotated[int, Range(least=8, most=1 << 20)] = 96
    """Keep this many of the measured steps, evenly spaced in their logarithm, or all if there are fewer."""
    dense_form: Literal["mckenna_l1", "mckenna_l2"] | None = None
    """With the method two-stage: parametric law that fills in the grid between sizes and ratios. None: fill it in along
    the steps alone."""
    draws: CountOrZero = 100
    """Number of fits to losses drawn anew, which give predictions their bands; 0 for none."""
    seed: Seed = 0
    """Seed of these draws."""
    batch_size: Count | None = None
    """Batch size of the trainings to fit; needed if the measurements have several batch sizes."""

    def __post_init__(self) -> None:
        check_value_types(self)
        if self.dense_form is not None and self.method != "two-stage":
            raise ConfigurationError(
                f"{setting('dense_form')} is {self.dense_form}, but is of the method two-stage alone"
            )


def amount(setting: float, whole: float) -> float:
    """Return a setting that is a share of the whole where it is below 1, else an amount."""
    return setting * whole if setting < 1 else setting
