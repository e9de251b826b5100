"""Which of the named models federated runs train."""

import functools
from typing import Any

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.runs.capabilities.interface import Builder
from fedlm.models.base import Model
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import SpecialTokens
from fedlm.models.training_shapes import check_length


def create_federated_model(
    name: str, vocabulary_size: int | None = None, special_tokens: SpecialTokens | None = None, **constants: Any
) -> Model:
    """Build a model that predicts the next token, as clients' examples ask for; see
    `fedlm.models.registry.create_model`. Raises UnknownModelError where there is no such model, ConfigurationError
    where it has another objective."""
    model = create_model(name, vocabulary_size, special_tokens, **constants)
    if model.objective != "causal":
        raise ConfigurationError(
            f"model {name!r} has the {model.objective} objective, and federated runs train models to predict the next "
            "token; name a causal one (`fedlm models` lists them)"
        )
    return model


def named_builder(name: str, length: int) -> Builder:
    """Give what builds a model of a name that reads sequences of a length; raises what `create_federated_model` does.
    The builder raises ConfigurationError where the model cannot read them."""
    create_federated_model(name)

    def build(vocabulary_size: int, special_tokens: SpecialTokens, **constants: Any) -> Model:
        model = _same_model(name, vocabulary_size, special_tokens, **constants)
        check_length(name, model, length)
        return model

    return build


# The same object for the same model lets the next experiment of a comparison reuse compiled programs.
_same_model = functools.lru_cache(maxsize=32)(create_federated_model)
