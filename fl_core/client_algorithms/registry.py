"""The client algorithms by name, which is that of their file: a new one is a file and a line."""

import copy
import dataclasses
import functools
import importlib
from collections.abc import Mapping

from fedlm.fl_core.client_algorithms.interface import ClientAlgorithm
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.models.imported_names import import_named, is_imported_name

SGD, EVALUATE = "sgd", "evaluate"
"""The names of what clients do that know of no other algorithm, and of what they do where they train nothing."""
_FILES = (
    SGD,
    "fedprox",
    "mime_lite",
    "local_adam",
    EVALUATE,
)

CLIENT_ALGORITHMS: dict[str, type[ClientAlgorithm]] = {
    file: importlib.import_module(f"{__package__}.{file}").ALGORITHM for file in _FILES
}
"""What clients do, by name.

Example:
  >>> CLIENT_ALGORITHMS["sgd"].help
  'plain SGD (FedAvg)'
"""


def make_algorithm(name: str, constants: Mapping[str, float] | None = None) -> ClientAlgorithm:
    """Choose how clients train.

    Args:
      name: a key of `CLIENT_ALGORITHMS`, or `module:NAME` for a `ClientAlgorithm` of your own, with its constants in
        it, in a module that Python finds.
      constants: of a registered one, all of them by name; its own where None.

    Raises:
      ConfigurationError: there is no such algorithm, it has other constants, or one is out of range.
    """
    if is_imported_name(name):
        return _imported(name)
    if name not in CLIENT_ALGORITHMS:
        raise ConfigurationError(
            f"{setting('client_algorithm')} is {name!r}, but must be one of {', '.join(CLIENT_ALGORITHMS)}, or "
            "`module:NAME`"
        )
    kind = CLIENT_ALGORITHMS[name]
    known = {field.name for field in dataclasses.fields(kind)}
    if constants is not None and constants.keys() != known:
        raise ConfigurationError(
            f"the client algorithm {name} has the constants {sorted(known)}, but {sorted(constants)} are given"
        )
    return kind(**(constants or {}))


def _imported(name: str) -> ClientAlgorithm:
    found = import_named(
        name,
        what="client_algorithm",
        expected="a ClientAlgorithm object",
        fits=lambda found: isinstance(found, ClientAlgorithm),
    )
    check_comparable(found)
    return found


def check_comparable(algorithm: ClientAlgorithm) -> None:
    """Refuse an algorithm that cannot be told from another: programs are compiled once for all that are equal.

    Raises:
      ConfigurationError: it cannot be hashed, or has constants that are no fields.
    """
    kind, remedy = type(algorithm).__name__, "make its class a frozen dataclass whose fields are numbers"
    try:
        hash(algorithm)
    except TypeError as error:
        found = f"{setting('client_algorithm')} is a {kind} that cannot be hashed ({error}); {remedy}"
        raise ConfigurationError(found) from error
    fields = {field.name for field in dataclasses.fields(algorithm)}
    for name in vars(algorithm).keys() - fields:
        other = copy.copy(algorithm)
        object.__setattr__(other, name, object())
        if other == algorithm and not isinstance(getattr(type(algorithm), name, None), functools.cached_property):
            raise ConfigurationError(
                f"{setting('client_algorithm')} is a {kind} whose {name} is not a field, so one with another {name} "
                f"would count as equal; {remedy}, with @dataclass(frozen=True) above it too"
            )
