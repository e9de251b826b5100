"""What a field of a type holds of a value that somebody gave."""

import contextlib
import dataclasses
import os
import types
import typing
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from fedlm.fl_core.errors import setting
from fedlm.fl_core.number_ranges import range_of, refusal

_MUST_BE: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number"}


def problems_of(settings: dict[str, tuple[Any, Any]]) -> dict[str, str]:
    """Say of settings, each a value and its type, which do not fit, by name."""
    found: dict[str, str] = {}
    for name, (value, hint) in settings.items():
        try:
            fitting = fitting_value(value, hint)
        except TypeError as error:
            found[name] = f"{setting(name)} is {value!r}, but {error}"
            continue
        interval = range_of(hint)
        if interval is not None and (why := refusal(fitting, interval)) is not None:
            found[name] = f"{setting(name)} {why}"
    return found


def as_written(value: Any, hint: Any) -> Any:
    """Make what a field holds of a value that fits it."""
    fitting = fitting_value(value, hint)
    # Numbers of Python stay as they were written: 5 in place of 5.0.
    written = all(type(one) in (int, float) for one in (value if isinstance(value, tuple) else (value,)))
    return fitting if fitting != value or not written else value


def fitting_value(value: Any, kind: Any) -> Any:
    """Make what a field of a type holds of a value; a TypeError says what the value must be."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return fitting_value(value, parts[0])
    if origin in (Union, types.UnionType):
        if value is None or value == "None":
            return None
        *first, last = (part for part in parts if part is not types.NoneType)
        for part in first:
            with contextlib.suppress(TypeError):
                return fitting_value(value, part)
        return fitting_value(value, last)
    if origin is tuple:
        values = value if isinstance(value, list | tuple) else [value]
        try:
            return tuple(fitting_value(one, parts[0]) for one in values)
        except TypeError as error:
            raise TypeError(f"each {error}") from None
    if origin is Literal:
        if value not in parts:
            raise TypeError(f"must be one of {', '.join(map(str, parts))}")
        return parts[parts.index(value)]
    if dataclasses.is_dataclass(kind):
        record = typing.cast(type, kind)
        if not isinstance(value, record):
            raise TypeError(f"must be {record.__name__}")
        return value
    number = {int: Integral, float: Real}.get(kind)
    if number is not None and isinstance(value, number) and not isinstance(value, bool):
        # A whole number may be too large for a fractional one, and is infinite then, as 1e400 is.
        return float(str(value)) if kind is float and isinstance(value, Integral) else kind(value)
    if number is not None or not isinstance(value, {bool: bool | np.bool_, Path: str | os.PathLike}.get(kind, kind)):
        raise TypeError(f"must be {_MUST_BE.get(kind, 'a string')}")
    return kind(value)
