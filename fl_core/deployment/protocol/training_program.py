"""What clients run, as a message and back: the one place that knows the fields of `TrainingProgram`."""

import dataclasses
from typing import Any

import jax

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.text.text_examples import CUTS, ExampleCut
from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm, sent_by_client
from fedlm.fl_core.client_algorithms.personal_layers import with_personal_layers
from fedlm.fl_core.client_algorithms.registry import SGD, make_algorithm
from fedlm.fl_core.client_algorithms.settings import ClientAlgorithmSettings
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.local_sgd import LocalTraining
from fedlm.fl_core.rounds.settings import TrainingSettings
from fedlm.fl_core.updates.compressors import Compressor, Scheme, shapes_of
from fedlm.fl_core.updates.registry import compressor_of
from fedlm.fl_core.updates.update_bytes import WireError
from fedlm.models.base import Model

_FIELDS = messages.TrainingProgram.DESCRIPTOR.fields_by_name
_PLAIN = [field.name for field in dataclasses.fields(LocalTraining) if field.name not in ("algorithm", "draws_dropout")]
"""The fields of local training that the message has as they are."""


def write_training_program(
    name: str, model: Model, settings: TrainingSettings, examples: ExampleCut = "sentences"
) -> messages.TrainingProgram:
    """Put what clients need into a message.

    `name` is what they know the model by, `examples` what makes an example of their text.
    """
    return messages.TrainingProgram(
        model=name,
        vocabulary_size=model.vocabulary_size,
        length=settings.length,
        precision=settings.precision,
        upload=_write_upload_plan(settings.compressor(), model, settings.algorithm.make()),
        algorithm=_write_algorithm(settings.algorithm),
        dropout=settings.dropout,
        examples=examples,
        **{name: getattr(settings.local_training(), name) for name in _PLAIN},
    )


def _write_algorithm(settings: ClientAlgorithmSettings) -> messages.ClientAlgorithm | None:
    # Clients that know of no algorithms train with SGD.
    name, personal_layers = settings.client_algorithm, settings.personal_layers
    if name == SGD and not personal_layers:
        return None
    return messages.ClientAlgorithm(name=name, constants=settings.constants(), personal_layers=personal_layers)


def read_local_training(program: messages.TrainingProgram) -> LocalTraining:
    """Take local training out of a message that is not trusted, but for the name of an algorithm of one's own, whose
    module is imported.

    Raises:
      ConfigurationError: this software does not have the algorithm, or a setting is out of range.
    """
    absent = {name for name in _PLAIN if _FIELDS[name].has_presence and not program.HasField(name)}
    given: dict[str, Any] = {name: getattr(program, name) for name in _PLAIN if name not in absent}
    algorithm = make_algorithm(algorithm_name(program), program.algorithm.constants)
    algorithm = with_personal_layers(algorithm, program.algorithm.personal_layers)
    return LocalTraining(**given, algorithm=algorithm, draws_dropout=program.dropout > 0)


def read_cut(program: messages.TrainingProgram) -> ExampleCut:
    """Say what makes an example of a client's text; raises ConfigurationError where this software does not know it."""
    for cut in CUTS:
        if program.examples == cut:
            return cut
    raise ConfigurationError(
        f"the server asks for examples that are {program.examples[:100]!r}, but this client knows {' and '.join(CUTS)}"
    )


def algorithm_name(program: messages.TrainingProgram) -> str:
    """Say what the client algorithm is called."""
    return program.algorithm.name if program.HasField("algorithm") else SGD


def read_compressor(program: messages.TrainingProgram, model: Model, algorithm: ClientAlgorithm) -> Compressor:
    """Take the way that updates travel out of a message that is not trusted.

    Raises:
      ConfigurationError: this software does not have it.
      WireError: the server's model has other tensors than the one that a client knows by the same name.
    """
    plan = program.upload
    compressor = compressor_of(Scheme(plan.scheme, plan.version, dict(plan.settings)))
    if plan != _write_upload_plan(compressor, model, algorithm):
        raise WireError(f"its model {program.model} has other tensors than this software's; it is of another version")
    return compressor


def _write_upload_plan(compressor: Compressor, model: Model, algorithm: ClientAlgorithm) -> messages.UploadPlan:
    shapes = shapes_of(sent_by_client(algorithm, jax.eval_shape(model.init, jax.random.key(0))))
    return messages.UploadPlan(
        scheme=compressor.scheme.number,
        version=compressor.scheme.version,
        settings=compressor.scheme.settings,
        tensors=[messages.TensorShape(dimensions=shape) for shape in shapes],
    )
