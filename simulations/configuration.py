"""The settings of simulated training. The command line's options and help are made from these dataclasses."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fl_core.aggregation import AggregationRules, Weighting
from fl_core.compression import UploadBits, make_compressor
from fl_core.errors import ConfigurationError
from fl_core.local_sgd import LocalTraining
from fl_core.server_optimizers import ServerOptimizerConfig
from models.precision import Precision


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """What one simulation and a whole comparison have in common."""

    data: Path
    """Folder of the federated data set, as `fedlm data import` writes it."""
    rounds: int = 100
    """Rounds to run."""
    cohort_size: int = 50
    """Clients that take part in a round, drawn uniformly without replacement."""
    length: int = 20
    """Target tokens of a sequence: `[BOS] w1 .. wk [EOS]` is cut or padded to one token more."""

    client_batch_size: int = 10
    """Examples in a client's local step."""
    client_epochs: int = 1
    """Passes of a client over its examples in a round."""
    client_max_batches: int = 120
    """Local steps that a client takes at most in a round."""
    client_gradient_clip: float | None = None
    """Clip each local gradient to this global norm."""

    server_optimizer: Literal["fedavg", "fedavgm", "fedadam", "fedadagrad", "fedyogi"] = "fedadam"
    """How the server applies the mean update (Reddi et al. 2021)."""
    server_momentum: float = 0.9
    """Momentum of fedavgm."""
    server_beta1: float = 0.9
    """Decay of the first moment of fedadam and fedyogi."""
    server_beta2: float = 0.999
    """Decay of the second moment of fedadam and fedyogi."""
    server_epsilon: float = 1e-8
    """Added to the root of the second moment of fedadam, fedadagrad and fedyogi."""
    weighting: Weighting = "examples"
    """Whether a client's update counts by its examples, or all count the same."""
    update_clip_norm: float | None = None
    """Scale an update down to this L2 norm on the server. This alone gives no privacy guarantee."""

    upload_bits: UploadBits = 8
    """Bits a value of an upload: stochastic uniform quantization, or 32 for float32 as it is."""
    upload_rotation: bool = False
    """Rotate an update randomly before quantizing it (Suresh et al. 2017)."""

    evaluate_every: int = 10
    """Score the held-out clients every so many rounds, and after the last."""
    heldout_examples: int = 10_000
    """Held-out examples to score on; always the same ones."""
    test_examples: int | None = None
    """Test examples to score on at the end; all where it is not given."""
    checkpoint_every: int = 50
    """Save a checkpoint every so many rounds, and after the last."""

    precision: Precision = "auto"
    """Precision of the models' arithmetic; parameters are float32 always. auto: float32 on a CPU, tf32 on a GPU,
    bfloat16 on a TPU."""
    lanes_per_device: int | None = None
    """Clients trained together on one device: 1 on a CPU where it is not given, else as many as fit well."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}, but must be at least 1")
        self.local_training(), self.aggregation_rules(), self.server_config()
        make_compressor(self.upload_bits, self.upload_rotation)

    def local_training(self) -> LocalTraining:
        """Collect what clients need."""
        return LocalTraining(
            batch_size=self.client_batch_size,
            epochs=self.client_epochs,
            max_batches=self.client_max_batches,
            gradient_clip=self.client_gradient_clip,
        )

    def aggregation_rules(self) -> AggregationRules:
        """Collect how the server treats updates."""
        return AggregationRules(weighting=self.weighting, clip_norm=self.update_clip_norm)

    def server_config(self) -> ServerOptimizerConfig:
        """Collect the server optimizer's constants."""
        return ServerOptimizerConfig(
            name=self.server_optimizer,
            momentum=self.server_momentum,
            beta1=self.server_beta1,
            beta2=self.server_beta2,
            epsilon=self.server_epsilon,
        )


@dataclass(frozen=True, kw_only=True)
class Experiment(RoundSettings):
    """One model trained once."""

    model: str
    """Name of the model; `fedlm models` lists them."""
    client_learning_rate: float = 0.5
    """Learning rate of the clients' SGD."""
    server_learning_rate: float = 0.01
    """Learning rate of the server optimizer."""
    seed: int = 0
    """Root seed of initialisation, cohorts, shuffling and rounding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_rates("client_learning_rate", self.client_learning_rate)
        check_learning_rates("server_learning_rate", self.server_learning_rate)
        check_seeds("seed", self.seed)


@dataclass(frozen=True, kw_only=True)
class Comparison(RoundSettings):
    """Several models, each trained with every combination of learning rates and with several seeds."""

    models: tuple[str, ...]
    """Names of the models to compare; `fedlm models` lists them."""
    client_learning_rates: tuple[float, ...] = (0.5,)
    """Learning rates of the clients' SGD to try."""
    server_learning_rates: tuple[float, ...] = (0.01,)
    """Learning rates of the server optimizer to try."""
    seeds: tuple[int, ...] = (0, 1)
    """Root seeds; each trains every model with every combination of learning rates once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("models", "client_learning_rates", "server_learning_rates", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ConfigurationError(f"{name} is {values}, but must name at least one value, each only once")
        check_learning_rates("client_learning_rates", *self.client_learning_rates)
        check_learning_rates("server_learning_rates", *self.server_learning_rates)
        check_seeds("seeds", *self.seeds)

    def experiments(self) -> list[Experiment]:
        """List the experiments, those of one model together.

        Returns:
          One for each model, client learning rate, server learning rate and seed.
        """
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(RoundSettings)}
        return [
            Experiment(
                **shared,
                model=model,
                client_learning_rate=client_rate,
                server_learning_rate=server_rate,
                seed=seed,
            )
            for model in self.models
            for client_rate in self.client_learning_rates
            for server_rate in self.server_learning_rates
            for seed in self.seeds
        ]


_POSITIVE = (
    "rounds",
    "cohort_size",
    "length",
    "evaluate_every",
    "heldout_examples",
    "test_examples",
    "checkpoint_every",
    "lanes_per_device",
)


def check_learning_rates(name: str, *rates: float) -> None:
    """Refuse learning rates that are not positive and finite.

    Args:
      name: the setting, for the message.
      *rates: its values.

    Raises:
      ConfigurationError: one is not.
    """
    for rate in rates:
        if not (rate > 0 and math.isfinite(rate)):
            raise ConfigurationError(f"{name} is {rate}, but must be positive and finite")


def check_seeds(name: str, *seeds: int) -> None:
    """Refuse seeds that random number generators do not take.

    Args:
      name: the setting, for the message.
      *seeds: its values.

    Raises:
      ConfigurationError: one is negative or has more than 32 bits.
    """
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise ConfigurationError(f"{name} is {seed}, but must lie between 0 and 2^32 - 1")


def as_json(settings: RoundSettings) -> dict[str, Any]:
    """Make a JSON-able dictionary of settings.

    Args:
      settings: any of this module.

    Returns:
      From names to values; paths as strings, tuples as lists.
    """
    return {
        name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(settings).items()
    }
