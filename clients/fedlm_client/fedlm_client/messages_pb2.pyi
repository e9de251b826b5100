from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckInRequest(_message.Message):
    __slots__ = ("protocol", "client_version", "models", "algorithms", "needs_plan", "secure_sums", "log_sizes", "populations")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ALGORITHMS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_PLAN_FIELD_NUMBER: _ClassVar[int]
    SECURE_SUMS_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZES_FIELD_NUMBER: _ClassVar[int]
    POPULATIONS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    client_version: str
    models: _containers.RepeatedScalarFieldContainer[str]
    algorithms: _containers.RepeatedScalarFieldContainer[str]
    needs_plan: bool
    secure_sums: bool
    log_sizes: _containers.RepeatedScalarFieldContainer[int]
    populations: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., client_version: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., algorithms: _Optional[_Iterable[str]] = ..., needs_plan: _Optional[bool] = ..., secure_sums: _Optional[bool] = ..., log_sizes: _Optional[_Iterable[int]] = ..., populations: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckInReply(_message.Message):
    __slots__ = ("selected", "come_back", "protocols", "tree_head", "consistency")
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    COME_BACK_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    TREE_HEAD_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    selected: RoundConfiguration
    come_back: ComeBack
    protocols: _containers.RepeatedScalarFieldContainer[int]
    tree_head: SignedTreeHead
    consistency: _containers.RepeatedCompositeFieldContainer[ConsistencyProof]
    def __init__(self, selected: _Optional[_Union[RoundConfiguration, _Mapping]] = ..., come_back: _Optional[_Union[ComeBack, _Mapping]] = ..., protocols: _Optional[_Iterable[int]] = ..., tree_head: _Optional[_Union[SignedTreeHead, _Mapping]] = ..., consistency: _Optional[_Iterable[_Union[ConsistencyProof, _Mapping]]] = ...) -> None: ...

class SignedTreeHead(_message.Message):
    __slots__ = ("key", "size", "root", "signature")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    size: int
    root: bytes
    signature: bytes
    def __init__(self, key: _Optional[bytes] = ..., size: _Optional[int] = ..., root: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ConsistencyProof(_message.Message):
    __slots__ = ("size", "root", "path")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    size: int
    root: bytes
    path: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, size: _Optional[int] = ..., root: _Optional[bytes] = ..., path: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("run", "log_sizes")
    RUN_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZES_FIELD_NUMBER: _ClassVar[int]
    run: str
    log_sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, run: _Optional[str] = ..., log_sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class LogReply(_message.Message):
    __slots__ = ("tree_head", "consistency", "leaves")
    TREE_HEAD_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    tree_head: SignedTreeHead
    consistency: _containers.RepeatedCompositeFieldContainer[ConsistencyProof]
    leaves: _containers.RepeatedCompositeFieldContainer[InclusionProof]
    def __init__(self, tree_head: _Optional[_Union[SignedTreeHead, _Mapping]] = ..., consistency: _Optional[_Iterable[_Union[ConsistencyProof, _Mapping]]] = ..., leaves: _Optional[_Iterable[_Union[InclusionProof, _Mapping]]] = ...) -> None: ...

class InclusionProof(_message.Message):
    __slots__ = ("index", "leaf", "path")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    index: int
    leaf: bytes
    path: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, index: _Optional[int] = ..., leaf: _Optional[bytes] = ..., path: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LogEntry(_message.Message):
    __slots__ = ("population", "run", "plan", "statement", "release")
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    population: str
    run: str
    plan: RoundConfiguration
    statement: str
    release: str
    def __init__(self, population: _Optional[str] = ..., run: _Optional[str] = ..., plan: _Optional[_Union[RoundConfiguration, _Mapping]] = ..., statement: _Optional[str] = ..., release: _Optional[str] = ...) -> None: ...

class ComeBack(_message.Message):
    __slots__ = ("seconds", "reason", "finished", "done")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    reason: str
    finished: bool
    done: bool
    def __init__(self, seconds: _Optional[float] = ..., reason: _Optional[str] = ..., finished: _Optional[bool] = ..., done: _Optional[bool] = ...) -> None: ...

class RoundConfiguration(_message.Message):
    __slots__ = ("attempt", "round_number", "client_index", "seed", "learning_rate", "program", "parameters", "vocabulary", "seconds", "population", "participation", "plan", "run", "secure_sum")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUND_NUMBER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    PARTICIPATION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SECURE_SUM_FIELD_NUMBER: _ClassVar[int]
    attempt: bytes
    round_number: int
    client_index: int
    seed: int
    learning_rate: float
    program: TrainingProgram
    parameters: Artifact
    vocabulary: Artifact
    seconds: float
    population: str
    participation: ParticipationPlan
    plan: Plan
    run: str
    secure_sum: SecureSum
    def __init__(self, attempt: _Optional[bytes] = ..., round_number: _Optional[int] = ..., client_index: _Optional[int] = ..., seed: _Optional[int] = ..., learning_rate: _Optional[float] = ..., program: _Optional[_Union[TrainingProgram, _Mapping]] = ..., parameters: _Optional[_Union[Artifact, _Mapping]] = ..., vocabulary: _Optional[_Union[Artifact, _Mapping]] = ..., seconds: _Optional[float] = ..., population: _Optional[str] = ..., participation: _Optional[_Union[ParticipationPlan, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., run: _Optional[str] = ..., secure_sum: _Optional[_Union[SecureSum, _Mapping]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("manifest", "model", "signature")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    manifest: Artifact
    model: Artifact
    signature: bytes
    def __init__(self, manifest: _Optional[_Union[Artifact, _Mapping]] = ..., model: _Optional[_Union[Artifact, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ParticipationPlan(_message.Message):
    __slots__ = ("rounds", "max_participations", "min_separation", "first_round")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MAX_PARTICIPATIONS_FIELD_NUMBER: _ClassVar[int]
    MIN_SEPARATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    max_participations: int
    min_separation: int
    first_round: int
    def __init__(self, rounds: _Optional[int] = ..., max_participations: _Optional[int] = ..., min_separation: _Optional[int] = ..., first_round: _Optional[int] = ...) -> None: ...

class TrainingProgram(_message.Message):
    __slots__ = ("model", "vocabulary_size", "length", "precision", "batch_size", "epochs", "max_batches", "gradient_clip", "max_examples", "cap_order", "batches_across_epochs", "upload", "algorithm", "dropout", "examples")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCHES_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIP_FIELD_NUMBER: _ClassVar[int]
    MAX_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    CAP_ORDER_FIELD_NUMBER: _ClassVar[int]
    BATCHES_ACROSS_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    model: str
    vocabulary_size: int
    length: int
    precision: str
    batch_size: int
    epochs: int
    max_batches: int
    gradient_clip: float
    max_examples: int
    cap_order: str
    batches_across_epochs: bool
    upload: UploadPlan
    algorithm: ClientAlgorithm
    dropout: float
    examples: str
    def __init__(self, model: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., length: _Optional[int] = ..., precision: _Optional[str] = ..., batch_size: _Optional[int] = ..., epochs: _Optional[int] = ..., max_batches: _Optional[int] = ..., gradient_clip: _Optional[float] = ..., max_examples: _Optional[int] = ..., cap_order: _Optional[str] = ..., batches_across_epochs: _Optional[bool] = ..., upload: _Optional[_Union[UploadPlan, _Mapping]] = ..., algorithm: _Optional[_Union[ClientAlgorithm, _Mapping]] = ..., dropout: _Optional[float] = ..., examples: _Optional[str] = ...) -> None: ...

class ClientAlgorithm(_message.Message):
    __slots__ = ("name", "constants", "personal_layers")
    class ConstantsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_LAYERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    constants: _containers.ScalarMap[str, float]
    personal_layers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., constants: _Optional[_Mapping[str, float]] = ..., personal_layers: _Optional[_Iterable[str]] = ...) -> None: ...

class UploadPlan(_message.Message):
    __slots__ = ("scheme", "version", "settings", "tensors")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    scheme: int
    version: int
    settings: _containers.ScalarMap[str, int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorShape]
    def __init__(self, scheme: _Optional[int] = ..., version: _Optional[int] = ..., settings: _Optional[_Mapping[str, int]] = ..., tensors: _Optional[_Iterable[_Union[TensorShape, _Mapping]]] = ...) -> None: ...

class TensorShape(_message.Message):
    __slots__ = ("dimensions",)
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    dimensions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dimensions: _Optional[_Iterable[int]] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("digest", "encoding", "size", "chunk_bytes", "chunk_digests")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    encoding: str
    size: int
    chunk_bytes: int
    chunk_digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, digest: _Optional[bytes] = ..., encoding: _Optional[str] = ..., size: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., chunk_digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class UploadHeader(_message.Message):
    __slots__ = ("attempt", "upload_id", "outcome", "size", "num_examples", "loss", "tokens", "gradient_norm", "offset", "asks")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[UploadHeader.Outcome]
        TRAINED: _ClassVar[UploadHeader.Outcome]
        NO_EXAMPLES: _ClassVar[UploadHeader.Outcome]
        NOT_FINITE: _ClassVar[UploadHeader.Outcome]
        NOT_ALLOWED: _ClassVar[UploadHeader.Outcome]
        TOO_SLOW: _ClassVar[UploadHeader.Outcome]
    OUTCOME_UNSPECIFIED: UploadHeader.Outcome
    TRAINED: UploadHeader.Outcome
    NO_EXAMPLES: UploadHeader.Outcome
    NOT_FINITE: UploadHeader.Outcome
    NOT_ALLOWED: UploadHeader.Outcome
    TOO_SLOW: UploadHeader.Outcome
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIELD_NUMBER: _ClassVar[int]
    attempt: bytes
    upload_id: bytes
    outcome: UploadHeader.Outcome
    size: int
    num_examples: int
    loss: float
    tokens: float
    gradient_norm: float
    offset: int
    asks: bool
    def __init__(self, attempt: _Optional[bytes] = ..., upload_id: _Optional[bytes] = ..., outcome: _Optional[_Union[UploadHeader.Outcome, str]] = ..., size: _Optional[int] = ..., num_examples: _Optional[int] = ..., loss: _Optional[float] = ..., tokens: _Optional[float] = ..., gradient_norm: _Optional[float] = ..., offset: _Optional[int] = ..., asks: _Optional[bool] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ("status", "reason", "come_back_seconds", "received")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[UploadReply.Status]
        ACCEPTED: _ClassVar[UploadReply.Status]
        LATE: _ClassVar[UploadReply.Status]
        STALE: _ClassVar[UploadReply.Status]
        NOT_SELECTED: _ClassVar[UploadReply.Status]
        INVALID: _ClassVar[UploadReply.Status]
        DAMAGED: _ClassVar[UploadReply.Status]
    STATUS_UNSPECIFIED: UploadReply.Status
    ACCEPTED: UploadReply.Status
    LATE: UploadReply.Status
    STALE: UploadReply.Status
    NOT_SELECTED: UploadReply.Status
    INVALID: UploadReply.Status
    DAMAGED: UploadReply.Status
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COME_BACK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    status: UploadReply.Status
    reason: str
    come_back_seconds: float
    received: int
    def __init__(self, status: _Optional[_Union[UploadReply.Status, str]] = ..., reason: _Optional[str] = ..., come_back_seconds: _Optional[float] = ..., received: _Optional[int] = ...) -> None: ...

class EnrolRequest(_message.Message):
    __slots__ = ("token", "request")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    token: str
    request: bytes
    def __init__(self, token: _Optional[str] = ..., request: _Optional[bytes] = ...) -> None: ...

class EnrolReply(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class SecureSum(_message.Message):
    __slots__ = ("clip_norm", "step", "bounds", "noise")
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    clip_norm: float
    step: float
    bounds: _containers.RepeatedScalarFieldContainer[float]
    noise: NoiseShare
    def __init__(self, clip_norm: _Optional[float] = ..., step: _Optional[float] = ..., bounds: _Optional[_Iterable[float]] = ..., noise: _Optional[_Union[NoiseShare, _Mapping]] = ...) -> None: ...

class NoiseShare(_message.Message):
    __slots__ = ("kind", "variance", "scale", "bits", "rotation")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VARIANCE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    variance: float
    scale: float
    bits: int
    rotation: bytes
    def __init__(self, kind: _Optional[str] = ..., variance: _Optional[float] = ..., scale: _Optional[float] = ..., bits: _Optional[int] = ..., rotation: _Optional[bytes] = ...) -> None: ...

class SecureRequest(_message.Message):
    __slots__ = ("attempt", "step", "content")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    attempt: bytes
    step: str
    content: bytes
    def __init__(self, attempt: _Optional[bytes] = ..., step: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class SecureReply(_message.Message):
    __slots__ = ("state", "content", "reason", "seconds")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[SecureReply.State]
        WAIT: _ClassVar[SecureReply.State]
        READY: _ClassVar[SecureReply.State]
        OVER: _ClassVar[SecureReply.State]
    STATE_UNSPECIFIED: SecureReply.State
    WAIT: SecureReply.State
    READY: SecureReply.State
    OVER: SecureReply.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    state: SecureReply.State
    content: bytes
    reason: str
    seconds: float
    def __init__(self, state: _Optional[_Union[SecureReply.State, str]] = ..., content: _Optional[bytes] = ..., reason: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...
