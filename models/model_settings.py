"""The settings of a model's family: fields of its configuration, as a model's name and its description have them.

`cifg_1m+output_norm=rms_norm` is the named model `cifg_1m` with one setting changed; `sasrec+max_length=200+tied=false`
changes two. The vocabulary's size and special tokens are the data's, and errors of parameters follow from a run's plan.
"""

import contextlib
import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

from fedlm.models.errors import ConfigurationError
from fedlm.models.families.transformer import LARGEST_SIZE

OF_DATA = ("special_tokens", "parameter_errors")
"""Fields that no description has."""
_SWITCH = {"true": True, "false": False}
_PLAIN_NUMBER = re.compile(r"[0-9.eE+-]{1,40}")
"""Python reads more, such as `1_0`, and digits of other scripts."""


def described_fields(kind: type) -> dict[str, Any]:
    """Find the fields of a class of configurations that a description has, with their types."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.name not in OF_DATA}


def settable(kind: type) -> dict[str, Any]:
    """Find what a name can set of a class of configurations, with the types: single values, but for the vocabulary."""
    fields = described_fields(kind) if dataclasses.is_dataclass(kind) else {}
    return {
        name: hint
        for name, hint in fields.items()
        if name != "vocabulary_size" and typing.get_origin(hint) is not tuple
    }


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse, as a ConfigurationError, a value that does not fit the type of its field, or a size that is not one."""
    if not _fits(value, hint):
        raise ConfigurationError(f"{name} is {value!r}, expected {expected(hint)}")


def expected(hint: Any) -> str:
    """Say in words what a field takes."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(typing.get_args(hint))
    if isinstance(hint, types.UnionType):
        return " or ".join(expected(part) for part in typing.get_args(hint))
    words = {int: "a positive integer", float: "a positive number", bool: "true or false", type(None): "none"}
    return words.get(hint, str(hint))


def _fits(value: Any, hint: Any) -> bool:
    kinds = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is typing.Literal:
        return value in kinds
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(type(one) is int and one >= 0 for one in value)
    if type(value) is int and int in kinds:
        return 0 < value <= LARGEST_SIZE
    if type(value) is float and not 0 < value < math.inf:
        return False
    return type(value) in kinds or (type(value) is int and float in kinds and 0 < value <= LARGEST_SIZE)


def with_settings(config: Any, settings: Sequence[str]) -> Any:
    """Change a configuration by settings as a name has them, `FIELD=VALUE`, or `FIELD` for `FIELD=true`.

    Raises:
      ConfigurationError: there is no such setting, it is there twice, or its value does not fit.

    Example:
      >>> from fedlm.models.families.cifg import CifgConfig
      >>> with_settings(CifgConfig(), ["hidden=64", "tied=false"]).hidden
      64
    """
    known, values = settable(type(config)), {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ConfigurationError(f"there is no setting {name!r}; {hint}there are {', '.join(known) or 'none'}")
        if name in values:
            raise ConfigurationError(f"{name} is set twice")
        values[name] = _read(name, text if equals else "true", known[name])
    return dataclasses.replace(config, **values)


def _read(name: str, text: str, hint: Any) -> Any:
    kinds = typing.get_args(hint) or (hint,)
    value: Any = text
    if text == "none" and type(None) in kinds:
        value = None
    elif bool in kinds:
        value = _SWITCH.get(text, text)
    elif (int in kinds or float in kinds) and _PLAIN_NUMBER.fullmatch(text):
        with contextlib.suppress(ValueError):
            value = int(text) if int in kinds else float(text)
    check_value(name, value, hint)
    return value
