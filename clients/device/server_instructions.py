"""From what the server says of a round to what the client runs, made once and kept warm."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlm.clients.device.local_training import ClientProgram
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.text.text_examples import with_tokens
from fedlm.fl_core.deployment.protocol.training_program import algorithm_name, read_compressor, read_local_training
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.client_examples import ClientExamples, padded_sequences
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.models.base import Model
from fedlm.models.layers.dropout import check_dropout, with_dropout
from fedlm.models.precision import Precision, resolve_precision, with_precision
from fedlm.models.registry import create_model

_LONGEST = 1 << 20

Encode = Callable[[Sequence[Any]], list[np.ndarray]]
"""From examples to the token ids of each, int [tokens], without special tokens other than OOV."""

ReadVocabulary = Callable[[bytes], Encode]
"""From the tokenizer's JSON, as the server sent it, to how it encodes."""


class AllowedPrograms(NamedTuple):
    """What a device's owner lets a server have it run.

    Attributes:
      models: names of the models that it trains; any registered one where empty. One of your own, `module:entry`, must
        be named here.
      algorithms: names of the client algorithms that it trains with; any registered one where empty. One of your own,
        `module:NAME`, must be named here.
    """

    models: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()


ANYTHING = AllowedPrograms()
"""All that is registered."""


def program_of(message: messages.TrainingProgram, allowed: AllowedPrograms, max_batches: int) -> ClientProgram:
    """Make what the client runs, of so many local steps at most.

    The same message comes to the same model, so that nothing is compiled twice.

    Raises:
      ConfigurationError: the client does not allow, or have, the model, the algorithm or the compression, or a setting
        is out of range.
      UnknownModelError: there is no such model.
      WireError: the server's model of that name is another one.
    """
    if message.model not in allowed.models and (allowed.models or ":" in message.model):
        raise ConfigurationError(f"the server asks for the model {message.model!r}, which this client does not allow")
    name = algorithm_name(message)
    if name not in allowed.algorithms and (allowed.algorithms or ":" in name):
        raise ConfigurationError(f"the server asks for the client algorithm {name!r}, which this client does not allow")
    training = read_local_training(message)
    training = dataclasses.replace(training, max_batches=min(training.max_batches, max_batches))
    check_dropout(message.dropout)
    if not 1 <= message.length <= _LONGEST:
        raise ConfigurationError(
            f"the server asks for examples of {message.length} tokens, but they have 1 to {_LONGEST}"
        )
    model = _model(message.model, message.vocabulary_size, message.precision, message.dropout)
    return ClientProgram(model, training, read_compressor(message, model, training.algorithm))


def plan_of(configuration: messages.RoundConfiguration) -> RoundPlan:
    """Make the plan of a round, as far as it concerns one client.

    Raises:
      ConfigurationError: the learning rate is not positive and finite.
    """
    rate = configuration.learning_rate
    if not (rate > 0 and math.isfinite(rate)):
        raise ConfigurationError(f"the server asks for the learning rate {rate}")
    client = np.array([configuration.client_index], np.int64)
    return RoundPlan(configuration.round_number, client, configuration.seed, rate)


def encode(examples: Sequence[Any], how: Encode, length: int) -> np.ndarray:
    """Make the sequences that are trained on, int32 [examples, length + 1]: `[BOS] w1 .. wk [EOS]`, cut or padded."""
    return padded_sequences(ClientExamples.from_sequences(with_tokens(how(examples)), np.uint32), length)


@functools.lru_cache(maxsize=8)
def _model(name: str, vocabulary_size: int, precision: Precision, dropout: float) -> Model:
    # The same object for the same model lets all rounds, and all clients of a process, share compiled programs.
    model = with_dropout(create_model(name, vocabulary_size), dropout)
    return with_precision(model, resolve_precision(precision, jax.default_backend()))
