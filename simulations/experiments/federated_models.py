"""Which of the named models federated runs train."""

from fedlm.fl_core.errors import ConfigurationError
from fedlm.models.base import Model
from fedlm.models.families.reattention import ParameterErrors
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import SpecialTokens


def create_federated_model(
    name: str,
    vocabulary_size: int | None = None,
    special_tokens: SpecialTokens | None = None,
    parameter_errors: ParameterErrors | None = None,
) -> Model:
    """Build a model that predicts the next token, as clients' examples ask for; see
    `fedlm.models.registry.create_model`. Raises UnknownModelError where there is no such model, ConfigurationError
    where it has another objective."""
    model = create_model(name, vocabulary_size, special_tokens, parameter_errors)
    if model.objective != "causal":
        raise ConfigurationError(
            f"model {name!r} has the {model.objective} objective, and federated runs train models to predict the next "
            "token; name a causal one (`fedlm models` lists them)"
        )
    return model
