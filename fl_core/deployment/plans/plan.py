"""A plan: a manifest and two programs, named by their SHA-256. docs/protocol.md says what is in it."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from fedlm.fl_core.client_algorithms.interface import sent_by_client
from fedlm.fl_core.deployment.plans.programs import Argument, Program, Tensor, make_programs
from fedlm.fl_core.deployment.protocol.update_bytes import upload_bytes, upload_header
from fedlm.fl_core.local_sgd import LocalTraining
from fedlm.fl_core.settings import TrainingSettings
from fedlm.fl_core.text_examples import ExampleCut
from fedlm.models.base import Model
from fedlm.models.dropout import with_dropout
from fedlm.models.precision import Precision, resolve_precision, with_precision
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import OOV_ID, OWN, PAD_ID

FORMAT, VERSION = "fedlm-plan", 1
SHUFFLE = {"name": "threefry-sort", "version": 1}
_COMPILE_SECONDS, _CALL_SECONDS = 600, 60
# What a runtime and its compiler need themselves, and how often it may hold the tensors and the logits.
_RUNTIME_BYTES, _COPIES, _LOGITS = 1 << 30, 8, 8


@dataclass(frozen=True)
class Plan:
    """What clients train, for one version of StableHLO."""

    manifest: bytes  # JSON in UTF-8
    step: bytes
    finish: bytes

    @property
    def digest(self) -> str:
        """The plan's name: the SHA-256, in hex, of the manifest, which has those of the programs."""
        return hashlib.sha256(self.manifest).hexdigest()


class PlanSource(NamedTuple):
    """What a plan is made of."""

    name: str  # of the model, registered or `module:NAME`
    tokenizer: bytes  # its JSON, as clients download it
    vocabulary_size: int  # tokens that it has
    settings: TrainingSettings  # of the run
    examples: ExampleCut = "sentences"  # what makes an example of a client's text


def make_plan(source: PlanSource, version: str) -> Plan:
    """Make the plan of a model and how clients train it; the same arguments give the same bytes.

    Args:
      source: what it is made of.
      version: of StableHLO, one of `programs.versions()`.

    Raises:
      ConfigurationError: a program would need code that it does not carry; see `make_programs`.
    """
    name, tokenizer, vocabulary_size, settings, examples = source
    model, precision = model_of_clients(name, vocabulary_size, settings)
    training, compressor = settings.local_training(), settings.compressor()
    made = make_programs(model, precision, training, compressor, settings.length, version)
    update = sent_by_client(training.algorithm, jax.eval_shape(model.init, jax.random.key(0)))
    tensors = _placed(made.download)
    values = sum(math.prod(one.shape) for one in (*made.download, *made.state))
    logits = training.batch_size * settings.length * vocabulary_size
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "about": {
            "model": name,
            "client_algorithm": settings.algorithm.client_algorithm,
            "compression": {"scheme": compressor.scheme.number, "settings": compressor.scheme.settings},
            "precision": precision,
        },
        "stablehlo": version,
        "programs": {"step": _described(made.step), "finish": _described(made.finish)},
        "download": {"values": sum(math.prod(one.shape) for one in made.download), "tensors": tensors},
        "state": [_tensor(one) | {"begins": begins} for one, begins in zip(made.state, made.begins, strict=True)],
        "upload": {"header": upload_header(compressor, update).hex(), "bytes": upload_bytes(compressor, update)},
        "examples": examples,
        "batches": _batches(training, settings.length),
        "shuffle": SHUFFLE,
        "tokenizer": {"sha256": hashlib.sha256(tokenizer).hexdigest(), "bytes": len(tokenizer)},
        "limits": {
            "memory_bytes": _RUNTIME_BYTES + 4 * (_COPIES * values + _LOGITS * logits),
            "compile_seconds": _COMPILE_SECONDS,
            "call_seconds": _CALL_SECONDS,
        },
    }
    return Plan(json.dumps(manifest, separators=(",", ":")).encode(), made.step.content, made.finish.content)


def model_of_clients(name: str, vocabulary_size: int, settings: TrainingSettings) -> tuple[Model, Precision]:
    """Make a model as clients train it, and its precision on their CPUs, whatever the server computes on."""
    precision = resolve_precision(settings.precision, "cpu")
    return with_precision(with_dropout(create_model(name, vocabulary_size), settings.dropout), precision), precision


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


def _described(program: Program) -> dict[str, Any]:
    digest = hashlib.sha256(program.content).hexdigest()
    sides = {"inputs": _arguments(program.inputs), "outputs": _arguments(program.outputs)}
    return {"sha256": digest, "bytes": len(program.content), **sides}


def _arguments(arguments: Sequence[Argument]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(one) | {"shape": list(one.shape)} for one in arguments]
