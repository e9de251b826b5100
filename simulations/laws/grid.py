"""The settings of a grid of trainings."""

from dataclasses import dataclass
from pathlib import Path

import optax

from fedlm.fl_core.clipping.methods import Clipping
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.number_ranges import Count, CountOrZero, Decay, NotNegative, Positive, Seed
from fedlm.models.precision import Precision
from fedlm.simulations.pretraining.optimizers import ScheduleName, learning_rates
from fedlm.simulations.pretraining.privacy_units import Packing

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
        return learning_rates(self.schedule, 1.0, self.warmup_steps, steps, self.final_rate)

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
