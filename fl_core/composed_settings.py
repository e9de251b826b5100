"""Settings made of records: each room has its own, and commands and runs put them together.

The fields of all records within one, at any depth, differ in their names. So options, files and what a run writes down
of its settings are flat: a name, a value.
"""

import dataclasses
import math
import typing
from pathlib import Path
from typing import Any, TypeVar

_Settings = TypeVar("_Settings")


def flat_settings(settings: Any) -> dict[str, Any]:
    """Collect the values of a record, those of the records within it among them, by name."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        flat |= flat_settings(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return flat


def compose(kind: type[_Settings], **values: Any) -> _Settings:
    """Make a record, and those within it, of flat values; the others have their defaults.

    Raises:
      TypeError: a value has the name of no field, or one without default is missing.
      ConfigurationError: a value is out of range.

    Example:
      >>> from fedlm import Experiment
      >>> experiment = compose(Experiment, model="cifg_tiny", data=Path("runs/stdlib"), rounds=20, cohort_size=10)
      >>> experiment.cohorts.cohort_size
      10
    """
    if unknown := values.keys() - value_types(kind).keys():
        raise TypeError(f"{kind.__name__} has no setting {', '.join(sorted(unknown))}")
    return _composed(kind, values)


def with_changes(settings: _Settings, **values: Any) -> _Settings:
    """Make a record like another, with some flat values changed; raises what `compose` does.

    Example:
      >>> from fedlm import Experiment
      >>> experiment = compose(Experiment, model="cifg_tiny", data=Path("runs/stdlib"))
      >>> with_changes(experiment, seed=7, client_batch_size=4).training.client_batch_size
      4
    """
    return compose(type(settings), **flat_settings(settings) | values)


def _composed(kind: type[_Settings], values: dict[str, Any]) -> _Settings:
    own: dict[str, Any] = {}
    for name, record in _fields(kind).items():
        if record is not None:
            own[name] = _composed(record, values)
        elif name in values:
            own[name] = values[name]
    return kind(**own)


def default_settings(kind: type) -> dict[str, Any]:
    """Collect the defaults of a record's fields, and of those of the records within it, by name."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.default_factory is not dataclasses.MISSING:
            defaults |= flat_settings(field.default_factory())
        elif field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif (record := _fields(kind)[field.name]) is not None:
            defaults |= default_settings(record)
    return defaults


def settings_as_json(settings: Any) -> dict[str, Any]:
    """Make a JSON-able dictionary of a record: flat, paths as strings, tuples as lists, in which infinity is `inf`."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [str(entry) if entry == math.inf else entry for entry in value]
        return str(value) if isinstance(value, Path) else value

    return {name: plain(value) for name, value in flat_settings(settings).items()}


def _fields(kind: type) -> dict[str, type | None]:
    """From the names of a record's fields to the records that they hold, or None where they hold a value."""
    kinds = typing.get_type_hints(kind)
    names = (field.name for field in dataclasses.fields(kind))
    return {name: kinds[name] if dataclasses.is_dataclass(kinds[name]) else None for name in names}


def value_types(kind: type) -> dict[str, Any]:
    """From the names of a record's values, and of those of the records within it, to their types."""
    types: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for name, record in _fields(kind).items():
        types |= {name: hints[name]} if record is None else value_types(record)
    return types
