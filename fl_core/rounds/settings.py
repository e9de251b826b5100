"""The settings of federated training that a simulation and a deployment have in common."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

from fedlm.fl_core.client_algorithms.evaluate import MOST_NORM
from fedlm.fl_core.client_algorithms.settings import ClientAlgorithmSettings
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, CountOrZero, Decay, Positive
from fedlm.fl_core.rounds.aggregation import AggregationRules, WeightedMean, Weighting
from fedlm.fl_core.rounds.local_sgd import CapOrder, LocalTraining
from fedlm.fl_core.rounds.round_loop import FederatedOptimization
from fedlm.fl_core.rounds.server_optimizers import ServerOptimizerConfig, ServerOptimizerName, check_server_rate
from fedlm.fl_core.updates.compressors import Compressor
from fedlm.fl_core.updates.registry import COMPRESSION_OF_BITS, CompressionName, UploadBits, make_compressor
from fedlm.models.precision import Precision


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The algorithm: what clients and server do in a round."""

    length: Count = 20
    """Target tokens of a sequence: `[BOS] w1 .. wk [EOS]` is cut or padded to one token more."""

    client_batch_size: Count = 10
    """Examples in a client's local step."""
    client_epochs: Count = 1
    """Passes of a client over its examples in a round."""
    client_max_batches: Count = 120
    """Most local steps of a client in a round."""
    client_gradient_clip: Positive | None = None
    """Clip each local gradient to this global norm."""
    client_max_examples: Count | None = None
    """Most examples (sentences) that a client trains on in an epoch; it counts for no more in the weighted mean."""
    client_cap_order: Annotated[CapOrder, OnlyWith("client_max_examples")] = "shuffle_then_cap"
    """Which examples client-max-examples keeps. shuffle_then_cap: shuffles all, then keeps the first, so others in
    every epoch and round (as FedJAX's shuffle_repeat_batch shuffles). cap_then_shuffle: keeps the first as they are
    stored, the same in every round (as google-research/federated does for Stack Overflow)."""
    client_batches_across_epochs: bool = False
    """Cut a client's epochs, laid end to end, into batches, so that only the very last may be partly filled (as
    google-research/federated; FedJAX fills that one up too). Else each epoch ends with its own partly filled batch."""

    dropout: Decay = 0.0
    """Share of activations to drop in training, for recommenders: sasrec, dpformer, gru4rec, lstm4rec."""

    algorithm: ClientAlgorithmSettings = field(default_factory=ClientAlgorithmSettings)

    server_optimizer: ServerOptimizerName = ServerOptimizerConfig.name
    """How the server applies the mean update (Reddi et al. 2021). Or module:NAME, an optax optimizer of your own, or a
    function that makes one of server-learning-rate."""
    server_momentum: Annotated[Decay, OnlyWith("server_optimizer", "fedavgm")] = ServerOptimizerConfig.momentum
    """Momentum of fedavgm."""
    server_beta1: Annotated[Decay, OnlyWith("server_optimizer", "fedadam", "fedyogi")] = ServerOptimizerConfig.beta1
    """Decay of the first moment of fedadam and fedyogi."""
    server_beta2: Annotated[Decay, OnlyWith("server_optimizer", "fedadam", "fedyogi")] = ServerOptimizerConfig.beta2
    """Decay of the second moment of fedadam and fedyogi."""
    server_epsilon: Annotated[Positive, OnlyWith("server_optimizer", "fedadam", "fedyogi", "fedadagrad")] = (
        ServerOptimizerConfig.epsilon
    )
    """Added to the root of the second moment of fedadam and fedyogi, and within the root, to the sum of squares, of
    fedadagrad."""
    server_warmup_rounds: CountOrZero = 0
    """Rounds over which the server's learning rate grows, in equal steps, to its full size."""
    weighting: Literal["auto", "examples", "uniform"] = "auto"
    """Whether a client's update counts by its examples, or all count the same. auto: by examples without privacy, all
    the same with it."""
    update_clip_norm: Positive | None = None
    """Scale an update down to this L2 norm on the server. This alone gives no privacy guarantee."""
    update_norm_bound: Literal["auto", "adaptive", "none"] = "auto"
    """What bounds the norms of updates if update-clip-norm is not given. adaptive: four times the median norm of the
    latest cohorts. In a run's first round only the direction of an update then counts, so a few clients cannot move the
    model at will. none: nothing. auto: adaptive in a deployment without privacy, none in a simulation, because its
    clients are honest. With privacy update-clip-norm bounds them."""

    compression: CompressionName | None = None
    """How updates travel; docs/protocol.md describes each form. If not given, that of upload-bits."""
    upload_bits: UploadBits | None = None
    """Bits a value of an upload: stochastic uniform quantization (the compressions uniform2 to uniform16), or 32 for
    float32 as it is. If neither this nor compression is given, 8."""
    upload_rotation: bool = False
    """Rotate an update randomly before quantizing it (Suresh et al. 2017)."""

    precision: Precision = "auto"
    """Precision of the models' arithmetic; parameters are float32 always. auto: float32 on a CPU, tf32 on a GPU,
    bfloat16 on a TPU."""

    def __post_init__(self) -> None:
        check_value_types(self)
        if self.compression is None and self.upload_bits is None:
            object.__setattr__(self, "upload_bits", 8)
        if self.update_norm_bound != "auto" and self.update_clip_norm is not None:
            raise ConfigurationError(
                f"{setting('update_norm_bound')} is {self.update_norm_bound}, but {setting('update_clip_norm')}, "
                f"{self.update_clip_norm}, bounds norms; leave one of the two out"
            )
        self.local_training(), self.aggregation_rules(False), self.server_config(), self.compressor()
        if not self.algorithm.make().trains:
            self._check_evaluation()

    def _check_evaluation(self) -> None:
        wanted = {"update_clip_norm": MOST_NORM, "compression": None, "upload_bits": 32, "upload_rotation": False}
        wrong = [name for name, value in wanted.items() if getattr(self, name) != value]
        if wrong or self.weighting == "examples":
            raise ConfigurationError(
                f"{setting('client_algorithm')} is {self.algorithm.client_algorithm}, whose devices send a few numbers "
                f"of norm {MOST_NORM:g} at most in place of an update, and count once each; give "
                f"{setting('update_clip_norm')} {MOST_NORM:g} and {setting('upload_bits')} 32, and leave "
                f"{setting('compression')}, {setting('upload_rotation')} and {setting('weighting')} out"
            )

    def compressor(self) -> Compressor:
        """Choose how updates travel."""
        bits, name = self.upload_bits, self.compression
        if bits is not None and bits not in COMPRESSION_OF_BITS:
            raise ConfigurationError(
                f"{setting('upload_bits')} is {bits}, but must be one of {', '.join(map(str, COMPRESSION_OF_BITS))}"
            )
        named = name if bits is None else COMPRESSION_OF_BITS[bits]
        if name not in (None, named):
            raise ConfigurationError(
                f"{setting('upload_bits')} is {bits}, which is the compression {named}, but {setting('compression')} "
                f"is {name}; leave one of them out, or give it as None"
            )
        assert named is not None
        return make_compressor(named, self.upload_rotation)

    def local_training(self) -> LocalTraining:
        """Collect what clients need."""
        return LocalTraining(
            batch_size=self.client_batch_size,
            epochs=self.client_epochs,
            max_batches=self.client_max_batches,
            gradient_clip=self.client_gradient_clip,
            max_examples=self.client_max_examples,
            cap_order=self.client_cap_order,
            batches_across_epochs=self.client_batches_across_epochs,
            algorithm=self.algorithm.make(),
            draws_dropout=self.dropout > 0,
        )

    def aggregation_rules(self, private: bool) -> AggregationRules:
        """Collect how the server treats updates."""
        weighting: Weighting = "examples" if self.algorithm.make().trains and not private else "uniform"
        return AggregationRules(
            weighting if self.weighting == "auto" else self.weighting,
            self.local_training().most_examples,
            private,
        )

    def averaging(self) -> WeightedMean:
        """Say how sums become means, without privacy."""
        return WeightedMean(self.update_clip_norm)

    def server_config(self) -> ServerOptimizerConfig:
        """Collect the server optimizer's constants."""
        _, *constants = [field.name for field in dataclasses.fields(ServerOptimizerConfig)]
        return ServerOptimizerConfig(
            self.server_optimizer, **{name: getattr(self, f"server_{name}") for name in constants}
        )

    def optimization(
        self, server_learning_rate: float, client_learning_rate: float, seed: int
    ) -> FederatedOptimization:
        """Collect what the round loop needs. Raises ConfigurationError where a server optimizer of one's own cannot be
        imported, or brings a learning rate beside these."""
        server = self.server_config()
        check_server_rate(server, server_learning_rate, self.server_warmup_rounds)
        return FederatedOptimization(
            server=server,
            server_learning_rate=server_learning_rate,
            client_learning_rate=client_learning_rate,
            seed=seed,
            server_warmup_rounds=self.server_warmup_rounds,
            algorithm=self.algorithm.make(),
        )
