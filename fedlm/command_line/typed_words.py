"""What was typed, before it is checked: a command's options in which numbers are still words.

Whoever types sees then every number that does not fit in one message, in the words of the option.
"""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import tyro

from fedlm.fl_core.composed_settings import (
    compose,
    compose_without_idle,
    default_settings,
    flat_settings,
    value_types,
)
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.idle_settings import IdleSettingsError

_Command = TypeVar("_Command")
_NUMBERS = (int, float)


def unread(command: type, defaults: Mapping[str, Any], record: Any = None) -> Any:
    """Make a record of a command's options for tyro to fill in, in which numbers are words.

    It is not checked, nothing in it is derived from anything else, and what has no default is `tyro.MISSING` in it.

    Args:
      command: the dataclass of the options.
      defaults: values by name.
      record: an instance of it to take the others from; None for the defaults of the class.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    kinds: list[tuple[str, Any]] = []
    values: dict[str, Any] = {}
    for field in dataclasses.fields(command):
        kind, value = hints[field.name], field.default
        if record is not None:
            value = getattr(record, field.name)
        elif field.default_factory not in (dataclasses.MISSING, kind):
            value = field.default_factory()
        missing = value is dataclasses.MISSING
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            value = unread(kind, defaults, None if missing else value)
            kinds.append((field.name, type(value)))
        else:
            value = defaults.get(field.name, tyro.MISSING if missing else value)
            kinds.append((field.name, _of_words(kind)))
        values[field.name] = _as_words(value)
    return dataclasses.make_dataclass(command.__name__, kinds, kw_only=True)(**values)


def checked(
    command: type[_Command],
    words: Any,
    line: Sequence[str] = (),
    *,
    of_file: Mapping[str, Any] | None = None,
    of_preset: Mapping[str, Any] | None = None,
) -> _Command:
    """Read the numbers in what tyro has filled in, and make the command's options of it.

    What a preset set, and does nothing beside the line or the file, goes back to its default. So does what the file
    set, if it is the line that made it idle.

    Args:
      command: the dataclass of the options.
      words: an instance of what `unread` made of it.
      line: the words of the line.
      of_file: what the file set, by name.
      of_preset: what the preset set.

    Raises:
      ConfigurationError: values do not fit, of which it names all that it can.
    """
    kinds = value_types(command)
    read = {name: _read(value, kinds[name]) for name, value in flat_settings(words).items()}
    try:
        return compose(command, **read)
    except IdleSettingsError:
        file, preset = of_file or {}, of_preset or {}
        without_line = {**read, **default_settings(command), **preset, **file}
        named = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in line if word.startswith("--")}
        yielding = {*preset, *file} - named - _idle_in(command, without_line, file, preset.keys() - file.keys())
        return compose_without_idle(command, read, yielding)


def _idle_in(command: type, values: Mapping[str, Any], file: Mapping[str, Any], yielding: Iterable[str]) -> set[str]:
    """Find what the file set and does nothing already without the line; all where that cannot be told."""
    try:
        flat = flat_settings(compose_without_idle(command, values, {*file, *yielding}))
    except ConfigurationError:
        return {*file}
    return {name for name in file if flat[name] != values[name]}


def _of_words(hint: Any) -> Any:
    """Put words in the place of the numbers of a type."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_of_words(parts[0]), *hint.__metadata__)]
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_of_words, parts))]  # noqa: UP007 - made of a list
    if origin is tuple:
        one: Any = _of_words(parts[0])
        return tuple[one, ...]
    if origin is Literal:
        return str if any(type(part) in _NUMBERS for part in parts) else hint
    return str if hint in _NUMBERS else hint


def _as_words(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_as_words, value))
    return str(value) if type(value) in _NUMBERS else value


def _read(value: Any, kind: Any) -> Any:
    """Read the numbers of a type in words; a word that is none stays as it is, and is refused with the others."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next((part for part in get_args(kind) if part is not types.NoneType), kind)
    if isinstance(value, tuple) and get_origin(kind) is tuple:
        return tuple(_read(one, get_args(kind)[0]) for one in value)
    if get_origin(kind) is Literal:
        return next((part for part in get_args(kind) if str(part) == value), value)
    if kind not in _NUMBERS or not isinstance(value, str):
        return value
    try:
        return kind(value)
    except ValueError:
        return value
