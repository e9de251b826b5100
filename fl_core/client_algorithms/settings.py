"""The settings of client algorithms: which one, and the constants of each, which are the fields of its class."""

import dataclasses
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
from typing_extensions import Doc

from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm, check_private, sent_by_client
from fedlm.fl_core.client_algorithms.personal_layers import with_personal_layers
from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS, SGD, make_algorithm
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, setting

_HELP = (
    "How clients train. "
    + " ".join(f"{name}: {kind.help}." for name, kind in CLIENT_ALGORITHMS.items())
    + " Or `module:NAME` for one of your own in a module that Python finds; see docs/my-own-algorithm.md."
)


def _constants(name: str, kind: type[ClientAlgorithm]) -> list[tuple[str, Any, Any]]:
    """List an algorithm's settings: `NAME_CONSTANT`, with type and default."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [(f"{name}_{field.name}", hints[field.name], field.default) for field in dataclasses.fields(kind)]


@dataclass(frozen=True, kw_only=True)
class _Choice:
    client_algorithm: Annotated[str, Doc(_HELP)] = SGD


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class _Constants:
        """Only an algorithm's own file knows its constants by name."""
else:
    _Constants = dataclasses.make_dataclass(
        "_Constants",
        [setting for name, kind in CLIENT_ALGORITHMS.items() for setting in _constants(name, kind)],
        frozen=True,
        kw_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class ClientAlgorithmSettings(_Constants, _Choice):
    """What clients do with their gradients, and which layers they keep to themselves."""

    personal_layers: tuple[str, ...] = ()
    """Layers that stay on each person's device, as in FedPer (Arivazhagan et al. 2019): names of parameters, or what
    these begin with, such as output_bias or blocks.1. Clients train them with the others, keep them from round to
    round, and do not send them. A new person begins with the layers that the model began with."""

    def __post_init__(self) -> None:
        check_value_types(self)
        self.make()

    def make(self) -> ClientAlgorithm:
        """Choose the algorithm.

        Raises:
          ConfigurationError: there is no such algorithm, a constant is out of range, or one of another is set.
        """
        for name, kind in CLIENT_ALGORITHMS.items():
            for field in dataclasses.fields(kind):
                value = getattr(self, f"{name}_{field.name}")
                if name != self.client_algorithm and value != field.default:
                    raise ConfigurationError(
                        f"{setting(f'{name}_{field.name}')} is {value}, which does nothing with the "
                        f"{setting('client_algorithm')} {self.client_algorithm}; give "
                        f"{setting('client_algorithm', name)}, or leave {setting(f'{name}_{field.name}')} out"
                    )
        return with_personal_layers(make_algorithm(self.client_algorithm, self.constants()), self.personal_layers)

    def constants(self) -> dict[str, float]:
        """Collect the constants of the algorithm by name; one of your own has them in itself."""
        name = self.client_algorithm
        kind = CLIENT_ALGORITHMS.get(name)
        fields = () if kind is None else dataclasses.fields(kind)
        return {field.name: getattr(self, f"{name}_{field.name}") for field in fields}

    def check_privacy(self, is_private: bool) -> None:
        """Refuse privacy for an algorithm that it does not cover; raises ConfigurationError."""
        if not is_private:
            return
        algorithm, some_model = self.make(), {"any": jax.ShapeDtypeStruct((1,), jnp.float32)}
        try:
            sent_by_client(algorithm, some_model)
        except ConfigurationError:
            # One that asks for parameters by name is looked at with the run's model.
            return
        check_private(algorithm, some_model)
