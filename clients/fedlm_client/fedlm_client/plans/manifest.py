"""The manifest of a plan, of which nothing is believed before it was checked; docs/protocol.md describes it."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import PlanError
from ..limits import PlanLimits
from ..link.protocol import UPLOAD_MAGIC
from ..text.text_examples import CUTS, ExampleCut

FORMAT, VERSION = "fedlm-plan", 1
SHUFFLE = {"name": "threefry-sort", "version": 1}
SUMS = 3
_DTYPES = {"float32", "int32", "uint8"}
_CAP_ORDERS = ("shuffle_then_cap", "cap_then_shuffle")
_MOST_ARGUMENTS, _CHECKSUM_BYTES = 100_000, 4
_MOST_DIMENSIONS, _TOKENS, _LARGEST_BATCH = 64, 1 << 31, 1 << 22


@dataclass(frozen=True)
class Argument:
    """An argument or a result of a signature."""

    name: str  # in the model
    role: str
    index: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Signature(NamedTuple):
    """A function of the model."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]


class Tensor(NamedTuple):
    """A tensor of the download or of the state."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    begins: int | None = None  # the tensor of the download that one of the state begins as; zeros where None


@dataclass(frozen=True)
class Batches:
    """How a client makes batches of its examples."""

    length: int
    batch_size: int
    epochs: int
    max_batches: int
    max_examples: int | None
    cap_order: str
    batches_across_epochs: bool
    pad: int
    bos: int
    eos: int
    oov: int


@dataclass(frozen=True)
class Manifest:
    """What a client must know of a plan."""

    digest: str  # SHA-256 of the manifest, in hex
    about: str  # what the server says of it, for people
    model: str  # SHA-256, in hex
    model_bytes: int
    train: Signature
    finish: Signature
    download: tuple[Tensor, ...]
    state: tuple[Tensor, ...]
    header: bytes  # of an upload
    upload_bytes: int
    examples: ExampleCut  # what makes an example of a text
    batches: Batches
    tokenizer: str  # SHA-256, in hex
    tokenizer_bytes: int
    memory_bytes: int
    load_seconds: float
    call_seconds: float

    @property
    def download_values(self) -> int:
        """Values of all tensors of the download together."""
        return sum(math.prod(one.shape) for one in self.download)


def read_manifest(content: bytes) -> Manifest:
    """Read a manifest, and check that its parts fit each other.

    Raises:
      PlanError: it is of another version, is not one, or contradicts itself.
    """
    try:
        found = json.loads(content.decode("utf-8-sig"), parse_constant=_no_number)
        if found["format"] != FORMAT or found["version"] != VERSION:
            raise PlanError(
                f"the plan is a {found['format']} of version {found['version']}, but this client reads {FORMAT} "
                f"{VERSION}; update the older of the two"
            )
        if found["shuffle"] != SHUFFLE:
            raise PlanError(f"the plan shuffles by {found['shuffle']}, but this client knows {SHUFFLE} alone")
        manifest = _manifest(hashlib.sha256(content).hexdigest(), found)
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise PlanError(f"the plan's manifest cannot be read ({type(error).__name__}: {error})") from error
    _check(manifest)
    return manifest


def check_limits(manifest: Manifest, limits: PlanLimits) -> None:
    """Refuse, with `PlanError`, a plan that says that it needs more than the owner allows."""
    wanted = {
        "memory_bytes": manifest.memory_bytes,
        "load_seconds": manifest.load_seconds,
        "call_seconds": manifest.call_seconds,
        "plan_bytes": manifest.model_bytes,
    }
    for name, value in wanted.items():
        if not 0 < value <= getattr(limits, name):
            raise PlanError(
                f"the plan's {name} is {value:,}, but this client allows {getattr(limits, name):,}; its owner may "
                f"allow more with --{name.replace('_', '-')}"
            )


def check_model(manifest: Manifest, content: bytes) -> None:
    """Refuse, with `PlanError`, another model than the one that the manifest names."""
    if len(content) != manifest.model_bytes or hashlib.sha256(content).hexdigest() != manifest.model:
        raise PlanError("the plan's model is not the one that its manifest names")


def _manifest(digest: str, found: dict[str, Any]) -> Manifest:
    limits, upload = found["limits"], found["upload"]
    return Manifest(
        digest=digest,
        about=json.dumps(found["about"]),
        model=str(found["model"]["sha256"]),
        model_bytes=_count(found["model"]["bytes"], 1),
        train=_signature(found["signatures"]["train"]),
        finish=_signature(found["signatures"]["finish"]),
        download=tuple(_tensor(one) for one in found["download"]["tensors"]),
        state=tuple(_tensor(one, one["begins"]) for one in found["state"]),
        header=bytes.fromhex(upload["header"]),
        upload_bytes=_count(upload["bytes"]),
        examples=_cut(found["examples"]),
        batches=_batches(found["batches"]),
        tokenizer=str(found["tokenizer"]["sha256"]),
        tokenizer_bytes=_count(found["tokenizer"]["bytes"], 1),
        memory_bytes=_count(limits["memory_bytes"]),
        load_seconds=_number(limits["load_seconds"]),
        call_seconds=_number(limits["call_seconds"]),
    )


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise PlanError(f"the plan has {str(value)[:100]!r} where a number belongs")
    return float(value)


def _count(value: Any, least: int = 0, below: int = 1 << 53) -> int:
    if type(value) is not int or not least <= value < below:
        raise PlanError(f"the plan has {value!r} where a count of at least {least} belongs")
    return value


def _shape(found: Any) -> tuple[int, ...]:
    if len(found) > _MOST_DIMENSIONS:
        raise PlanError(f"the plan has a tensor of {len(found)} dimensions, but at most {_MOST_DIMENSIONS} are known")
    return tuple(_count(one, 1) for one in found)


def _dtype(found: Any) -> str:
    if found not in _DTYPES:
        raise PlanError(f"the plan has a tensor of {found!r}, but only {', '.join(sorted(_DTYPES))} are known")
    return str(found)


def _tensor(found: dict[str, Any], begins: int | None = None) -> Tensor:
    return Tensor(str(found["name"]), _shape(found["shape"]), _dtype(found["dtype"]), begins)


def _signature(found: dict[str, Any]) -> Signature:
    sides = [tuple(map(_argument, found[name])) for name in ("inputs", "outputs")]
    for side in sides:
        if not 0 < len(side) <= _MOST_ARGUMENTS or len({one.name for one in side}) != len(side):
            raise PlanError("a signature of the plan has no argument, no result, too many, or two of one name")
    return Signature(*sides)


def _argument(found: dict[str, Any]) -> Argument:
    named = str(found["name"]), str(found["role"])
    return Argument(*named, _count(found["index"]), _shape(found["shape"]), _dtype(found["dtype"]))


def _cut(found: Any) -> ExampleCut:
    for cut in CUTS:
        if found == cut:
            return cut
    raise PlanError(f"the plan's examples are {str(found)[:100]!r}, but this client knows {' and '.join(CUTS)}")


def _batches(found: dict[str, Any]) -> Batches:
    counts = {name: _count(found[name], 1) for name in ("length", "batch_size", "epochs", "max_batches")}
    special = {name: _count(found[name], below=_TOKENS) for name in ("pad", "bos", "eos", "oov")}
    most = found["max_examples"]
    if counts["batch_size"] * (counts["length"] + 1) > _LARGEST_BATCH:
        raise PlanError(
            f"the plan's batches have {counts['batch_size']} rows of {counts['length'] + 1} tokens, but this "
            f"client makes batches of at most {_LARGEST_BATCH:,} tokens"
        )
    if found["cap_order"] not in _CAP_ORDERS or type(found["batches_across_epochs"]) is not bool:
        raise PlanError(
            f"the plan's batches have the cap_order {found['cap_order']!r}, which this client does not know"
        )
    return Batches(
        **counts,
        **special,
        max_examples=None if most is None else _count(most, 1),
        cap_order=found["cap_order"],
        batches_across_epochs=found["batches_across_epochs"],
    )


def _check(manifest: Manifest) -> None:
    """Refuse signatures whose arguments are not those that a client of this version has to give them."""
    batches = manifest.batches
    tensors = {
        **{("state", place): one for place, one in enumerate(manifest.state)},
        **{("download", place): one for place, one in enumerate(manifest.download)},
    }
    known = {key: (one.shape, one.dtype) for key, one in tensors.items()}
    scalars = {("sums", place): ((), "float32") for place in range(SUMS)}
    rows = {
        ("tokens", 0): ((batches.batch_size, batches.length + 1), "int32"),
        ("weight", 0): ((batches.batch_size,), "float32"),
        ("random", 0): ((batches.batch_size, 2), "int32"),
        ("learning_rate", 0): ((), "float32"),
    }
    names = {(name, 0): ((), "int32") for name in ("seed", "round_number", "client_index")}
    stepped = {key: value for key, value in known.items() if key[0] == "state"} | scalars
    _check_side("train takes", manifest.train.inputs, known | scalars | rows)
    _check_side("train gives", manifest.train.outputs, stepped, whole=True)
    _check_side("finish takes", manifest.finish.inputs, known | names)
    pieces = [one for one in manifest.finish.outputs if one.role == "upload"]
    sent = {
        ("upload", place): (one.shape, one.dtype) for place, one in enumerate(sorted(pieces, key=lambda one: one.index))
    }
    _check_side("finish gives", manifest.finish.outputs, sent | {("finite", 0): ((), "int32")}, whole=True)
    if len(manifest.header) != 8 or not manifest.header.startswith(UPLOAD_MAGIC):
        raise PlanError("the plan's header of an upload is not an upload header")
    if sum(one.size for one in pieces) + len(manifest.header) + _CHECKSUM_BYTES != manifest.upload_bytes:
        raise PlanError("the plan's upload is not as long as what its signature finish gives")
    for one in manifest.state:
        begins = one.begins
        if begins is None:
            continue
        _count(begins)
        if begins >= len(manifest.download) or manifest.download[begins][1:3] != one[1:3]:
            raise PlanError(f"the plan's state {one.name!r} begins as a tensor that the download does not have")
    if any(one.dtype != "float32" for one in manifest.download):
        raise PlanError("the plan's download has a tensor that is not float32")


def _check_side(
    what: str, side: Sequence[Argument], known: dict[tuple[str, int], tuple[tuple[int, ...], str]], whole: bool = False
) -> None:
    found = [(one.role, one.index) for one in side]
    if len(set(found)) != len(found) or (whole and set(found) != set(known)):
        raise PlanError(f"the plan's {what} the wrong tensors")
    for one in side:
        if known.get((one.role, one.index)) != (one.shape, one.dtype):
            raise PlanError(
                f"the plan's {what} {one.role} {one.index} as {one.dtype}{list(one.shape)}, which this client does not "
                "have"
            )
