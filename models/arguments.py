"""Arguments of public functions: of the types that annotations say, or an error that names the argument."""

import collections.abc
import functools
import inspect
import os
import reprlib
import typing
from collections.abc import Callable
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin

import numpy as np

from fedlm.models.errors import ConfigurationError, setting

StrPath: TypeAlias = str | os.PathLike[str]
"""Where a file or folder lies, as a caller gives it."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_PLAIN = (NoneType, bool, int, float, str, bytes)
_NUMBERS: dict[Any, Any] = {int: Integral, float: Real}
_WORDS: dict[Any, str] = {
    NoneType: "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    bytes: "bytes",
    os.PathLike: "a path",
    collections.abc.Callable: "a function",
    collections.abc.Mapping: "a mapping",
    dict: "a dictionary",
}


def checked_arguments(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Make a function refuse arguments that do not fit their annotations, as a ConfigurationError that names them.

    Elements of sequences are looked at where their type is a class, those of mappings are not. What a function collects
    by name is its own to check.

    Example:
      >>> @checked_arguments
      ... def twice(number: int, label: str | None = None) -> int:
      ...     return 2 * number
      >>> twice(4)
      8
      >>> twice("4")
      Traceback (most recent call last):
      fedlm.models.errors.ConfigurationError: number is '4', but must be a whole number
    """
    signature = inspect.signature(function)
    collected = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    passed = [name for name, parameter in signature.parameters.items() if parameter.kind not in collected]

    @functools.wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        arguments, hints = signature.bind(*args, **kwargs).arguments, _hints(function)
        for name in passed:
            if name in arguments and name in hints:
                _check(name, arguments[name], hints[name])
        return function(*args, **kwargs)

    return checked


def check_fields(record: Any) -> None:
    """Refuse a record whose fields do not fit their annotations; its `__post_init__` calls it before it checks more."""
    kind: Any = type(record)
    hints = _hints(kind)
    for name in record.__dataclass_fields__:
        _check(name, getattr(record, name), hints[name])


@functools.cache
def _hints(annotated: Any) -> dict[str, Any]:
    return typing.get_type_hints(annotated)


def _check(name: str, value: Any, hint: Any) -> None:
    if not _fits(value, hint):
        *others, last = _expected(hint)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise ConfigurationError(f"{setting(name)} is {_shown(value)}, but must be {expected}")


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Annotated:
        return _fits(value, parts[0])
    if origin is Literal:
        return any(value is part or (type(value) is type(part) and value == part) for part in parts)
    kind = origin or hint
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind is os.PathLike:
        return isinstance(value, os.PathLike) and isinstance(os.fspath(value), str)
    if kind is collections.abc.Callable:
        return callable(value)
    if kind is Any or not isinstance(kind, type):  # or a variable
        return True
    if kind is collections.abc.Iterable:
        return isinstance(value, kind) and not isinstance(value, str | bytes)
    if kind in (collections.abc.Sequence, list, tuple):
        # A text is a sequence of texts, but never meant as one.
        in_order = isinstance(value, kind) and not isinstance(value, str | bytes)
        return in_order and all(_fits(one, part) for part in parts[:1] if isinstance(part, type) for one in value)
    if _is_protocol(kind) and kind.__module__ != "collections.abc":
        return not isinstance(value, type) and all(hasattr(value, name) for name in _members(kind))
    return isinstance(value, kind)


def _is_protocol(kind: Any) -> bool:
    # typing_extensions can say it since 4.6, but the environments of FedJAX and TFF have older versions.
    return isinstance(kind, type) and bool(vars(kind).get("_is_protocol", False))


def _members(protocol: type) -> set[str]:
    """Name the methods and attributes that a protocol asks for."""
    asking = [vars(kind) for kind in protocol.__mro__ if _is_protocol(kind)]
    names = {name for found in asking for name in (*found, *found.get("__annotations__", {}))}
    return {name for name in names if not name.startswith("_") or name == "__call__"}


def _shown(value: Any) -> str:
    if isinstance(value, _PLAIN):
        return reprlib.repr(value)
    if isinstance(value, list | tuple) and value:
        kinds = list(dict.fromkeys(type(one).__name__ for one in value))
        return f"a {type(value).__name__} of {', '.join(kinds)}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _expected(hint: Any) -> list[str]:
    """Say in words what fits."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return list(dict.fromkeys(words for part in parts for words in _expected(part)))
    if origin is Annotated:
        return _expected(parts[0])
    if origin is Literal:
        return [repr(part) for part in parts]
    kind = origin or hint
    if kind in _WORDS:
        return [_WORDS[kind]]
    if kind in (collections.abc.Sequence, collections.abc.Iterable, list, tuple):
        return ["a list" + (f" of {parts[0].__name__}" if parts and isinstance(parts[0], type) else "")]
    if _is_protocol(kind):
        return [f"an object with {', '.join(sorted(_members(kind)))}"]
    return [f"a {kind.__name__}" if kind.__name__[0] not in "AEIO" else f"an {kind.__name__}"]
