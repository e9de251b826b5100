"""A plan: a manifest and a model of LiteRT, named by their SHA-256. docs/protocol.md says what is in it."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from fedlm.fedlm_client.text.text_examples import ExampleCut
from fedlm.fl_core.client_algorithms.interface import sent_by_client
from fedlm.fl_core.deployment.plans.litert.model import make_model
from fedlm.fl_core.deployment.plans.programs import PlanPrograms, Tensor, make_programs
from fedlm.fl_core.errors import setting
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.updates.registry import COMPRESSION_OF_BITS
from fedlm.fl_core.updates.update_bytes import upload_bytes, upload_header
from fedlm.models.base import Model
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.precision import Precision, resolve_precision, with_precision
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import OOV_ID, OWN, PAD_ID

FORMAT, VERSION = "fedlm-plan", 1
SHUFFLE = {"name": "threefry-sort", "version": 1}
_LOAD_SECONDS, _CALL_SECONDS = 600, 60
# What a runtime needs itself, and how often it may hold the tensors and the logits.
_RUNTIME_BYTES, _COPIES, _LOGITS = 1 << 30, 8, 8


@dataclass(frozen=True)
class Plan:
    """What clients train."""

    manifest: bytes  # JSON in UTF-8
    model: bytes  # of LiteRT

    @property
    def digest(self) -> str:
        """The plan's name: the SHA-256, in hex, of the manifest, which has that of the model."""
        return hashlib.sha256(self.manifest).hexdigest()


class PlanSource(NamedTuple):
    """What a plan is made of."""

    name: str  # of the model, registered or `module:NAME`
    tokenizer: bytes  # its JSON, as clients download it
    vocabulary_size: int  # tokens that it has
    settings: TrainingSettings  # of the run
    examples: ExampleCut = "sentences"  # what makes an example of a client's text


def make_plan(source: PlanSource) -> Plan:
    """Make the plan of a model and how clients train it, and run each of its functions once.

    The same arguments give the same bytes.

    Raises:
      ConfigurationError: ai-edge-litert is not installed, or LiteRT's built-in operations cannot compute a program.
    """
    name, tokenizer, vocabulary_size, settings, examples = source
    model, precision = model_of_clients(name, vocabulary_size, settings)
    training, compressor = settings.local_training(), settings.compressor()
    programs = make_programs(model, precision, training, compressor, length=settings.length)
    content, signatures = make_model(programs, name, _compression(settings))
    update = sent_by_client(training.algorithm, jax.eval_shape(model.init, jax.random.key(0)))
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "about": {
            "model": name,
            "client_algorithm": settings.algorithm.client_algorithm,
            "compression": {"scheme": compressor.scheme.number, "settings": compressor.scheme.settings},
            "precision": precision,
        },
        "model": {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)},
        "signatures": signatures,
        "download": {
            "values": sum(math.prod(one.shape) for one in programs.download),
            "tensors": _placed(programs.download),
        },
        "state": [
            _tensor(one) | {"begins": begins} for one, begins in zip(programs.state, programs.begins, strict=True)
        ],
        "upload": {"header": upload_header(compressor, update).hex(), "bytes": upload_bytes(compressor, update)},
        "examples": examples,
        "batches": _batches(training, settings.length),
        "shuffle": SHUFFLE,
        "tokenizer": {"sha256": hashlib.sha256(tokenizer).hexdigest(), "bytes": len(tokenizer)},
        "limits": {
            "memory_bytes": _memory(programs, training.batch_size * settings.length * vocabulary_size),
            "load_seconds": _LOAD_SECONDS,
            "call_seconds": _CALL_SECONDS,
        },
    }
    return Plan(json.dumps(manifest, separators=(",", ":")).encode(), content)


def model_of_clients(name: str, vocabulary_size: int, settings: TrainingSettings) -> tuple[Model, Precision]:
    """Make a model as clients train it, and its precision on their CPUs, whatever the server computes on."""
    precision = resolve_precision(settings.precision, "cpu")
    return with_precision(with_dropout(create_model(name, vocabulary_size), settings.dropout), precision), precision


def _compression(settings: TrainingSettings) -> str:
    """Name how uploads are compressed."""
    name = settings.compression or COMPRESSION_OF_BITS[settings.upload_bits or 32]
    return f"{name} with {setting('upload_rotation')}" if settings.upload_rotation else name


def _memory(programs: PlanPrograms, logits: int) -> int:
    values = sum(math.prod(one.shape) for one in (*programs.download, *programs.state))
    return _RUNTIME_BYTES + 4 * (_COPIES * values + _LOGITS * logits)


def _batches(training: LocalTraining, length: int) -> dict[str, Any]:
    names = ("batch_size", "epochs", "max_batches", "max_examples", "cap_order", "batches_across_epochs")
    special = {"pad": PAD_ID, "bos": OWN.bos, "eos": OWN.eos, "oov": OOV_ID}
    return {"length": length, **{name: getattr(training, name) for name in names}, **special}


def _placed(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Say where in a download each tensor begins, counted in values."""
    found, offset = [], 0
    for one in tensors:
        found.append(_tensor(one) | {"offset": offset})
        offset += math.prod(one.shape)
    return found


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
