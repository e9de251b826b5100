"""What clients run, as a message and back: the one place that knows the fields of `TrainingProgram`."""

import dataclasses
from typing import Any

import jax

from fedlm.fl_core.compression.compressors import Compressor, Scheme, shapes_of
from fedlm.fl_core.compression.registry import compressor_of
from fedlm.fl_core.deployment.protocol import messages_pb2 as messages
from fedlm.fl_core.deployment.protocol.update_bytes import WireError
from fedlm.fl_core.local_sgd import LocalTraining
from fedlm.fl_core.settings import TrainingSettings
from fedlm.models.base import Model

_FIELDS = messages.TrainingProgram.DESCRIPTOR.fields_by_name


def write_training_program(name: str, model: Model, settings: TrainingSettings) -> messages.TrainingProgram:
    """Put what clients need into a message; `name` is what they know the model by."""
    return messages.TrainingProgram(
        model=name,
        vocabulary_size=model.vocabulary_size,
        length=settings.length,
        precision=settings.precision,
        upload=_write_upload_plan(settings.compressor(), model),
        **dataclasses.asdict(settings.local_training()),
    )


def read_local_training(program: messages.TrainingProgram) -> LocalTraining:
    """Take local SGD out of a message that is not trusted.

    Raises:
      ConfigurationError: a setting is out of range.
    """
    names = [field.name for field in dataclasses.fields(LocalTraining)]
    absent = {name for name in names if _FIELDS[name].has_presence and not program.HasField(name)}
    given: dict[str, Any] = {name: getattr(program, name) for name in names if name not in absent}
    return LocalTraining(**given)


def read_compressor(program: messages.TrainingProgram, model: Model) -> Compressor:
    """Take the way that updates travel out of a message that is not trusted.

    Raises:
      ConfigurationError: this software does not have it.
      WireError: the server's model has other tensors than the one that a client knows by the same name.
    """
    plan = program.upload
    compressor = compressor_of(Scheme(plan.scheme, plan.version, dict(plan.settings)))
    if plan != _write_upload_plan(compressor, model):
        raise WireError(f"its model {program.model} has other tensors than this software's; it is of another version")
    return compressor


def _write_upload_plan(compressor: Compressor, model: Model) -> messages.UploadPlan:
    shapes = shapes_of(jax.eval_shape(model.init, jax.random.key(0)))
    return messages.UploadPlan(
        scheme=compressor.scheme.number,
        version=compressor.scheme.version,
        settings=compressor.scheme.settings,
        tensors=[messages.TensorShape(dimensions=shape) for shape in shapes],
    )
