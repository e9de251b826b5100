"""The settings of central pretraining."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import optax

from fedlm.fl_core.clipping.clip_functions import ClipName
from fedlm.fl_core.clipping.methods import Clipping, MethodName
from fedlm.fl_core.composed_settings import check_parts, check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, CountOrZero, Decay, NotNegative, Positive, Seed
from fedlm.fl_core.privacy.accounting.delta import Delta
from fedlm.fl_core.privacy.promise.plan import Adjacency
from fedlm.fl_core.runs.capabilities.settings import OfPretraining
from fedlm.fl_core.runs.capabilities.warm_start_settings import WarmStartSettings
from fedlm.models.precision import Precision
from fedlm.simulations.pretraining.batches.privacy_units import Packing, Unit
from fedlm.simulations.pretraining.inserted_canaries import CanarySettings
from fedlm.simulations.pretraining.optimizers import OptimizerName, ScheduleName, learning_rates
from fedlm.simulations.pretraining.trainer import Sharding

_TARGETS = ("epsilon", "noise_multiplier", "noise_batch_ratio")


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model, its data, and what a batch is made of."""

    model: str
    """Name of the model; `fedlm models` lists them. BERTs learn to predict masked words, all others the next token."""
    data: Path
    """Token store, as `fedlm data import` makes it."""
    cache: Path | None = None
    """Folder for the training tokens laid end to end, made once and shared by runs. If not given, `cache` in the data's
    folder."""
    steps: Count
    """T, the number of steps."""
    batch_size: Count
    """B, the mean number of units in a batch. With privacy each unit is in a batch independently with probability B /
    N; with b bands, in every b-th with probability b B / N. Sequences, not units, with the sampling examples."""
    length: Count = 128
    """Tokens that the model reads in a sequence."""
    unit: Unit = "example"
    """What is sampled, clipped and hidden as a whole. example: one sequence. user: everything of one client of the
    store, up to sequences-per-unit sequences. In a store that was imported without users that is a document, and the
    statement says so."""
    packing: Packing | None = None
    """packed: texts are laid end to end and cut into sequences without padding. none: each stored example is a sequence
    of its own, cut or padded. If not given: packed for texts, none for prompts with completions, which cannot be
    packed. An example that is too long loses the beginning of its prompt. A completion that is too long by itself loses
    its end."""
    sequences_per_unit: Annotated[Count, OnlyWith("unit", "user")] = 1
    """K, the most sequences of a user; only with the unit user."""


@dataclass(frozen=True, kw_only=True)
class _Privacy:
    """Differential privacy of each unit, and how gradients are clipped."""

    privacy: Literal["dpsgd", "none"] = "dpsgd"
    """dpsgd: clip the gradient of every unit and add noise to their sum. none: neither; the run is NOT PRIVATE."""
    mechanism: Annotated[Literal["gaussian", "banded"], OnlyWith("privacy", "dpsgd")] = "gaussian"
    """gaussian: the noise of every step is independent, as in DP-SGD. banded: it cancels what earlier steps added, and
    units take turns in as many parts as there are bands (amplified banded matrix factorization)."""
    bands: Annotated[Count | None, OnlyWith("mechanism", "banded")] = None
    """Diagonals of the banded mechanism. Each but one costs the memory of a model. If not given, the power of two up to
    32 with the least error of prefix sums at epsilon, which takes a while to find."""
    epsilon: Annotated[Positive | None, OnlyWith("privacy", "dpsgd")] = None
    """Choose the noise so that the whole run is (this, delta)-differentially private."""
    noise_multiplier: Annotated[Positive | None, OnlyWith("privacy", "dpsgd")] = None
    """Instead of epsilon: standard deviation of the noise on a step's sum, in clip norms."""
    noise_batch_ratio: Annotated[Positive | None, OnlyWith("privacy", "dpsgd")] = None
    """Instead of either: standard deviation of the noise on a step's mean, noise-multiplier / batch-size. Trainings of
    any batch size compare by it (McKenna et al. 2025, "Scaling laws for differentially private language models")."""
    delta: Annotated[Delta | None, OnlyWith("privacy", "dpsgd")] = None
    """Delta at which epsilon is stated. If not given, the number of units to the power -1.1."""
    adjacency: Annotated[Adjacency, OnlyWith("privacy", "dpsgd")] = "add_or_remove"
    """Which data sets are neighbours: one unit more or less, or one unit whose gradient is zero."""
    sampling: Annotated[
        Literal["poisson", "truncated_poisson", "balls_in_bins", "min_separation", "examples"],
        OnlyWith("privacy", "dpsgd"),
    ] = "poisson"
    """How private batches are drawn. poisson: unit by unit. truncated_poisson: batches larger than truncated-batch-size
    lose units at random. balls_in_bins: each unit is in one of as many bins as an epoch has steps, and bins take turns.
    min_separation: a unit is not drawn again within as many steps as there are bands.
    examples: the sequences of users are drawn and clipped one by one, for the unit user."""
    truncated_batch_size: Annotated[Count | None, OnlyWith("sampling", "truncated_poisson")] = None
    """Most units of a truncated batch. If not given, batch-size plus six standard deviations."""
    clip_norm: Annotated[Positive, OnlyWith("privacy", "dpsgd")] = 1.0
    """C, the greatest norm of a unit's clipped gradient. Gradients are divided by it, so the learning rate need not
    follow it."""
    clipping: Annotated[MethodName, OnlyWith("privacy", "dpsgd")] = "bookkeeping"
    """How sums of clipped gradients are computed. All give the same; vmap is the slowest and takes any model."""
    clip_function: Annotated[ClipName, OnlyWith("privacy", "dpsgd")] = "constant"
    """constant: longer gradients are scaled down to the clip norm. automatic: all are scaled to about the clip norm.
    per_layer: each parameter array is clipped alone."""
    noise_seed: Annotated[Literal["entropy", "experiment"], OnlyWith("privacy", "dpsgd")] = "entropy"
    """Where noise and batches come from. entropy: nobody can draw them again; the ledger's folder keeps their secret.
    experiment: they follow from the seed, so the run is repeatable, is NOT PRIVATE, and says so."""


@dataclass(frozen=True, kw_only=True)
class _Optimization:
    """The optimizer and its learning rate."""

    optimizer: OptimizerName = "adam"
    """Optimizer that takes the (noised) mean gradient."""
    learning_rate: Positive = 1e-3
    """Highest learning rate."""
    schedule: ScheduleName = "constant"
    """How the learning rate falls after the warm-up, to final-learning-rate at the end. linear: by the same amount in
    every step. exponential: by the same factor. cosine: along half a wave. constant: it does not fall."""
    final_learning_rate: NotNegative = 0.0
    """Learning rate at the end of the run; above 0 for exponential."""
    warmup_steps: CountOrZero = 0
    """Steps in which the learning rate grows to its highest."""
    momentum: Annotated[Decay, OnlyWith("optimizer", "sgd")] = 0.0
    """Of sgd."""
    beta1: Annotated[Decay, OnlyWith("optimizer", "adam", "adamw")] = 0.9
    """Decay of the first moment of adam and adamw."""
    beta2: Annotated[Decay, OnlyWith("optimizer", "adam", "adamw")] = 0.999
    """Decay of the second moment of adam and adamw."""
    adam_epsilon: Annotated[Positive, OnlyWith("optimizer", "adam", "adamw")] = 1e-8
    """Added to the root of the second moment of adam and adamw."""
    weight_decay: Annotated[NotNegative, OnlyWith("optimizer", "adamw")] = 0.01
    """Of adamw."""
    dropout: Decay = 0.0
    """Share of activations to drop in training, for recommenders: sasrec, dpformer, gru4rec, lstm4rec."""


@dataclass(frozen=True, kw_only=True)
class _Computation:
    """How the devices compute."""

    microbatch_size: Count | None = None
    """Units that a device takes at once. If not given, 4 on a CPU and 32 elsewhere. Memory grows with it, and the
    result does not depend on it."""
    sharding: Sharding = "data"
    """data: every device has all parameters. full: parameters, optimizer state, sums and noise are spread over the
    devices."""
    precision: Precision = "auto"
    """Precision of the model's arithmetic; parameters are float32 always. auto: float32 on a CPU, tf32 on a GPU,
    bfloat16 on a TPU."""


@dataclass(frozen=True, kw_only=True)
class Pretraining(CanarySettings, _Computation, _Optimization, OfPretraining, _Privacy, _Model):
    """Central training of one model: its seed, scores and checkpoints."""

    seed: Seed = 0
    """Root seed of initialisation, canaries and, without privacy, batches, masks and dropout."""
    evaluate_every: Count = 100
    """Steps between two scores of the held-out clients, who are also scored after the last step."""
    heldout_examples: Count = 2000
    """Held-out examples to score on each time."""
    test_examples: Count | None = None
    """Test examples to score on at the end. If not given, all."""
    checkpoint_every: Count = 100
    """Steps between two checkpoints. The last step has one, too. Each checkpoint of a private run is a release."""
    start: WarmStartSettings = field(default_factory=WarmStartSettings)

    def __post_init__(self) -> None:
        check_value_types(self)
        self.learning_rates()
        check_parts(self)
        self._check_sampling()
        self._check_privacy()

    def learning_rates(self) -> optax.Schedule:
        """Make the learning rate of every step; see `optimizers.learning_rates`."""
        return learning_rates(
            self.schedule,
            self.learning_rate,
            warmup_steps=self.warmup_steps,
            steps=self.steps,
            final=self.final_learning_rate,
        )

    @property
    def given_noise_multiplier(self) -> float | None:
        """The noise multiplier, however it is given; None where epsilon says how large it is."""
        if self.noise_batch_ratio is not None:
            return self.noise_batch_ratio * self.batch_size
        return self.noise_multiplier

    def _check_sampling(self) -> None:
        if self.sampling != "examples":
            return
        for name, needed in (("unit", "user"), ("mechanism", "gaussian")):
            if getattr(self, name) != needed:
                raise ConfigurationError(
                    f"{setting('sampling')} is examples, but {setting(name)} is {getattr(self, name)}; give "
                    f"{setting(name, needed)}"
                )

    def _check_privacy(self) -> None:
        if self.privacy == "none":
            return
        Clipping(self.clipping, self.clip_norm, self.clip_function)
        targets = [name for name in _TARGETS if getattr(self, name) is not None]
        if len(targets) != 1:
            raise ConfigurationError(
                f"give exactly one of {setting('epsilon')}, {setting('noise_multiplier')} and "
                f"{setting('noise_batch_ratio')}, not {' and '.join(map(setting, targets)) or 'none'}; or "
                f"{setting('privacy', 'none')}, for a run that is NOT PRIVATE"
            )
        if self.mechanism == "banded" and self.bands is None and targets != ["epsilon"]:
            raise ConfigurationError(
                f"{setting('mechanism')} is banded, but {setting('bands')} is not given, and can only be chosen for an "
                f"epsilon; give {setting('bands')}, or {setting('epsilon')} in place of {setting(targets[0])}"
            )
