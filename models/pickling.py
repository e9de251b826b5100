"""Models that pickle: what goes from one process to another is the call that makes a model, not its functions."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

_Model = TypeVar("_Model")
_Call = tuple[Callable[..., Any], tuple[Any, ...]]
_REMEMBERED = 32
"""Models that a process keeps of those that it read: whoever reads one again gets the same, compiled already."""


def made_by(build: Callable[..., _Model], *arguments: Any) -> _Model:
    """Make a model whose functions pickle as the call that made them.

    Args:
      build: makes a `fedlm.models.base.Model` of the arguments; pickles itself, as a function of a module does.
      arguments: what `pickle` can write.

    Returns:
      The model. It pickles also where some of its functions are replaced by others that do.
    """
    return _wrapped(build(*arguments), (build, arguments))


class _Function:
    """A function of a model, which pickles as its place in the model that a call makes."""

    def __init__(self, function: Callable[..., Any], call: _Call, place: str) -> None:
        functools.update_wrapper(self, function)
        self.function, self._call, self._place = function, call, place

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_of, (self._call, self._place)


def _wrapped(model: Any, call: _Call) -> Any:
    def wrapped(value: Any, place: str) -> Any:
        # Of calls within calls the outermost is kept: arguments of the others may be functions that do not pickle.
        function = value.function if isinstance(value, _Function) else value
        return _Function(function, call, place) if callable(value) else value

    changed = {field.name: wrapped(getattr(model, field.name), field.name) for field in dataclasses.fields(model)}
    if model.decoder is not None:
        functions = {name: wrapped(value, f"decoder.{name}") for name, value in model.decoder._asdict().items()}
        changed["decoder"] = model.decoder._replace(**functions)
    return dataclasses.replace(model, **changed)


def _function_of(call: _Call, place: str) -> Any:
    build, arguments = call
    try:
        model = _remembered(build, arguments)
    except TypeError:  # An argument that has no hash, such as an array.
        model = made_by(build, *arguments)
    return operator.attrgetter(place)(model)


@functools.lru_cache(maxsize=_REMEMBERED)
def _remembered(build: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return made_by(build, *arguments)
