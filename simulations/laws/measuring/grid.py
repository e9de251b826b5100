"""The settings of a grid of trainings, and named grids."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optax

from fedlm.fl_core.clipping.methods import Clipping
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, CountOrZero, Decay, NotNegative, Positive, Seed
from fedlm.models.precision import Precision
from fedlm.simulations.pretraining.batches.privacy_units import Packing
from fedlm.simulations.pretraining.optimizers import ScheduleName, learning_rates

AXES = ("models", "learning_rates", "noise_batch_ratios", "batch_sizes", "steps", "training_examples", "seeds")
"""The settings by which cells differ: one cell for each combination of their values."""


@dataclass(frozen=True, kw_only=True)
class _Axes:
    """What cells differ in; there is one for each combination."""

    models: tuple[str, ...]
    """Names of models, as `fedlm models` lists them. transformer_3x128 is a decoder of 3 layers of width 128; other
    numbers work too, with a width that is a multiple of 32."""
    learning_rates: tuple[Positive, ...]
    """Highest learning rates of the schedule."""
    noise_batch_ratios: tuple[NotNegative, ...] = (0.0,)
    """Standard deviations of the noise on a step's mean gradient, in clip norms: noise multiplier / batch size. 0:
    without noise."""
    batch_sizes: tuple[Count, ...] = (1024,)
    """Examples of a step."""
    steps: tuple[Count, ...]
    """T, the number of steps of a run, and the length of its schedule."""
    training_examples: tuple[CountOrZero, ...] = (0,)
    """Train on at most this many examples of the data, drawn by the seed; 0 for all."""
    seeds: tuple[Seed, ...] = (0,)
    """Root seeds: each draws first parameters, batches, masks and noise."""


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What is learnt."""

    data: Path
    """Token store, as `fedlm data import` makes it."""
    cache: Path | None = None
    """Folder for the training tokens laid end to end. If not given, `cache` in the data's folder."""
    length: Count = 512
    """Tokens that the model reads in an example."""
    packing: Packing = "packed"
    """packed: texts are laid end to end and cut into examples without padding. none: each stored example is an example
    of its own, cut or padded."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """How every cell is trained: by Adam."""

    clip_norm: Positive | None = 1.0
    """C, the greatest norm of an example's clipped gradient. Gradients are divided by it. None: no clipping and no
    noise."""
    schedule: ScheduleName = "exponential"
    """How the learning rate falls after the warm-up, until the end of the run."""
    final_rate: Decay = 0.1
    """Share of the highest rate at the end of the run."""
    warmup_steps: CountOrZero = 1000
    """Steps in which the learning rate grows to its highest."""
    beta1: Decay = 0.9
    """Decay of Adam's first moment."""
    beta2: Decay = 0.999
    """Decay of Adam's second moment."""
    adam_epsilon: Positive = 1e-8
    """Added to the root of Adam's second moment."""


@dataclass(frozen=True, kw_only=True)
class _Measuring:
    """How it is computed and measured."""

    block_steps: Count = 100
    """Steps of a block. A row of the measurements has the mean training loss of a block."""
    heldout_examples: CountOrZero = 0
    """Score this many held-out examples after every block; 0 for none. If examples repeat, the training loss does not
    show how well others are predicted."""
    microbatch_size: Count | None = None
    """Examples that are taken at once, a divisor of every batch size. If not given, whole batches."""
    precision: Precision = "auto"
    """Precision of the model's arithmetic; parameters are float32 always. auto: float32 on a CPU, tf32 on a GPU,
    bfloat16 on a TPU."""


@dataclass(frozen=True, kw_only=True)
class Grid(_Measuring, _Training, _Task, _Axes):
    """A grid of trainings by which scaling laws are measured."""

    def __post_init__(self) -> None:
        check_value_types(self)
        for name in AXES:
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ConfigurationError(
                    f"{setting(name)} is {values}, but must name at least one value, each only once"
                )
        self._check_noise()
        self._check_divisors()
        for steps in self.steps:
            self.rate_schedule(steps)

    def rate_schedule(self, steps: int) -> optax.Schedule:
        """Make the schedule of runs of so many steps, of which the highest learning rate is 1."""
        return learning_rates(self.schedule, 1.0, warmup_steps=self.warmup_steps, steps=steps, final=self.final_rate)

    def _check_noise(self) -> None:
        if self.clip_norm is not None:
            Clipping("bookkeeping", self.clip_norm)
        elif any(self.noise_batch_ratios):
            raise ConfigurationError(
                f"{setting('noise_batch_ratios')} are in clip norms, but {setting('clip_norm')} is None; give a clip "
                "norm, or 0 for no noise"
            )

    def _check_divisors(self) -> None:
        for steps in self.steps:
            if steps % self.block_steps:
                raise ConfigurationError(
                    f"{setting('steps')} has {steps}, but must have multiples of {setting('block_steps')}, "
                    f"{self.block_steps}"
                )
        for batch_size in self.batch_sizes if self.microbatch_size else ():
            if batch_size % self.microbatch_size:  # type: ignore[operator]
                raise ConfigurationError(
                    f"{setting('batch_sizes')} has {batch_size}, but must have multiples of "
                    f"{setting('microbatch_size')}, {self.microbatch_size}"
                )
        for examples in self.training_examples:
            if 0 < examples < max(self.batch_sizes):
                raise ConfigurationError(
                    f"{setting('training_examples')} has {examples}, but must not be below a batch size, "
                    f"{max(self.batch_sizes)}"
                )


_SMALL: dict[str, Any] = {
    "models": [
        *("transformer_2x64", "transformer_2x96", "transformer_3x128", "transformer_4x192", "transformer_4x256"),
    ],
    # In short trainings of the smallest model the best rate lay between 2^-5 and 2^-7, with noise and without, and that
    # of wider models lies lower.
    "learning_rates": [2.0**-8.5, 2.0**-7, 2.0**-5.5],
    "noise_batch_ratios": [0.0, *(2.0**-power for power in (14, 12, 10, 8, 6))],
    "batch_sizes": [32],
    "steps": [512],
    "seeds": [0, 1],
    "length": 32,
    "warmup_steps": 32,
    "block_steps": 32,
}

_MCKENNA: dict[str, Any] = {
    "models": [
        *("bert_tiny", "bert_mini", "bert_small", "bert_medium", "bert_base", "bert_large", "bert_mega"),
    ],
    "learning_rates": [2.0**-9, 2.0**-8, 2.0**-7],
    "noise_batch_ratios": [0.0, *(2.0**-power for power in range(23, 5, -1))],
    "batch_sizes": [1024],
    "steps": [128_000],
    "length": 512,
    "packing": "none",
    "clip_norm": 1.0,
    "schedule": "exponential",
    "final_rate": 0.1,
    "warmup_steps": 1000,
    "block_steps": 100,
    "microbatch_size": 16,
}

_VAULTGEMMA: dict[str, Any] = {
    "models": ["vaultgemma_1m", "vaultgemma_10m", "vaultgemma_20m", "vaultgemma_100m"],
    "learning_rates": [2.0**-power for power in (11, 10, 9, 8, 7, 6, 5)],
    "noise_batch_ratios": [0.0, *(2.0**-power for power in range(22, 9, -2))],
    "batch_sizes": [1024],
    "steps": [2000, 4000, 8000, 16_000, 32_000],
    "length": 1024,
    "clip_norm": 1.0,
    "warmup_steps": 1000,
    "block_steps": 100,
    "microbatch_size": 16,
}

_KAPLAN: dict[str, Any] = {
    "models": [
        *("transformer_2x128", "transformer_3x256", "transformer_4x512", "transformer_6x768", "transformer_12x768"),
        *("transformer_24x1024", "transformer_36x1280", "transformer_48x1600"),
    ],
    "learning_rates": [2.0**-11, 2.0**-10, 2.0**-9],
    "batch_sizes": [512],
    "steps": [250_000],
    "length": 1024,
    "clip_norm": None,
    "schedule": "cosine",
    "final_rate": 0.0,
    "warmup_steps": 3000,
    "block_steps": 100,
    "heldout_examples": 512,
    "microbatch_size": 16,
}

PRESETS: dict[str, dict[str, Any]] = {
    "small": _SMALL,
    "mckenna2025": _MCKENNA,
    "vaultgemma": _VAULTGEMMA,
    "kaplan2020": _KAPLAN,
    "kaplan2020-data": {
        **_KAPLAN,
        "models": ["transformer_3x256", "transformer_6x768", "transformer_36x1280"],
        # 22 million to 22 billion tokens.
        "training_examples": [21_500, 68_000, 215_000, 680_000, 2_150_000, 6_800_000, 21_500_000],
    },
    "kaplan2020-batches": {
        **_KAPLAN,
        "models": ["transformer_6x768"],
        "batch_sizes": [32, 64, 128, 256, 512, 1024, 2048],
    },
}
"""`small` suits two CPU cores; the others are made for accelerators, after publications. Of VaultGemma's grid only the
procedure is published; its models, rates, ratios and numbers of steps are ours. So are the shapes, but the first and
the last two, and the rates of Kaplan et al.

| preset | after |
| --- | --- |
| `mckenna2025` | McKenna et al. 2025, section 3.2: the whole grid |
| `vaultgemma` | the VaultGemma report, section 6: seven learning rates and five numbers of steps of a configuration |
| `kaplan2020` | Kaplan et al. 2020, section 2.2: sizes and compute |
| `kaplan2020-data` | section 4: 22 million to 22 billion tokens |
| `kaplan2020-batches` | section 5.1: batch sizes |
"""
