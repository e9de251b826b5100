"""Settings made of records: each room has its own, and commands and runs put them together.

The fields of all records within one, at any depth, differ in their names. So options, files and what a run writes down
of its settings are flat: a name, a value.
"""

import dataclasses
import difflib
import functools
import math
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.fitting_values import as_written, problems_of
from fedlm.fl_core.idle_settings import IdleSettingsError, names_that_do_nothing, refuse_idle_settings
from fedlm.fl_core.number_ranges import range_of
from fedlm.models.arguments import checked_arguments

_Settings = TypeVar("_Settings")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _cached(function: _Function) -> _Function:
    """Keep what a function of a class returned; type checkers do not take all classes for hashable."""
    return typing.cast(_Function, functools.cache(function))


def flat_settings(settings: Any) -> dict[str, Any]:
    """Collect the values of a record, those of the records within it among them, by name."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        flat |= flat_settings(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return flat


@checked_arguments
def compose(kind: type[_Settings], /, **values: Any) -> _Settings:
    """Make a record, and those within it, of flat values; the others have their defaults.

    Values of JSON fit as those of Python do: texts become paths, and lists tuples.

    Raises:
      ConfigurationError: a value has the name of no field, or one without default is missing; or values do not fit
        their fields' types or ranges, or each other: it names all of the former.

    Example:
      >>> from fedlm import Experiment
      >>> experiment = compose(Experiment, model="cifg_tiny", data=Path("runs/stdlib"), rounds=20, cohort_size=10)
      >>> experiment.cohorts.cohort_size
      10
    """
    known = value_types(kind)
    for name in sorted(values.keys() - known.keys()):
        close = difflib.get_close_matches(name, known) or sorted(known)
        raise ConfigurationError(f"no setting has the name {name}; did you mean {', '.join(close)}?")
    if missing := known.keys() - default_settings(kind).keys() - values.keys():
        raise ConfigurationError(f"{', '.join(map(setting, sorted(missing)))}: not given, and has no default; give it")
    hints = value_hints(kind)
    problems = problems_of({name: (value, hints[name]) for name, value in values.items()})
    if problems:
        raise ConfigurationError("\n".join([*problems.values(), *_other_problems(kind, values, problems.keys())]))
    return _composed(kind, {name: as_written(value, hints[name]) for name, value in values.items()})


def compose_without_idle(kind: type[_Settings], values: Mapping[str, Any], names: Iterable[str]) -> _Settings:
    """Make a record of flat values, as `compose` does. Those with some names have their defaults where they do nothing
    beside the others."""
    kept, left = dict(values), {*names}
    while True:
        try:
            return compose(kind, **kept)
        except IdleSettingsError as error:
            if not (idle := left & error.names & kept.keys()):
                raise
        kept = {name: value for name, value in kept.items() if name not in idle}


def idle_names(settings: Any) -> tuple[str, ...]:
    """List the flat values of a record that do nothing beside the others, whatever they are, by name."""
    return tuple(sorted(names_that_do_nothing(flat_settings(settings), value_hints(type(settings)))))


def _other_problems(kind: type, values: dict[str, Any], refused: Collection[str]) -> list[str]:
    """Find what else is wrong, were there numbers that fit in place of those that were refused."""
    intervals = {name: range_of(value_hints(kind)[name]) for name in refused}
    fitting = {name: interval.some() for name, interval in intervals.items() if interval is not None}
    if len(fitting) < len(intervals):
        return []
    several = {name: (number,) for name, number in fitting.items() if isinstance(values[name], tuple)}
    try:
        _composed(kind, values | fitting | several)
    except ConfigurationError as error:
        return [] if any(name in str(error) for name in refused) else [error.args[0]]
    return []


def with_changes(settings: _Settings, /, **values: Any) -> _Settings:
    """Make a record like another, with some flat values changed; raises what `compose` does.

    Example:
      >>> from fedlm import Experiment
      >>> experiment = compose(Experiment, model="cifg_tiny", data=Path("runs/stdlib"))
      >>> with_changes(experiment, seed=7, client_batch_size=4).training.client_batch_size
      4
    """
    if not dataclasses.is_dataclass(settings):
        raise ConfigurationError(
            f"{setting('settings')} is a {type(settings).__name__}, but must be a record of settings, an Experiment say"
        )
    return compose(type(settings), **flat_settings(settings) | values)


def _composed(kind: type[_Settings], values: dict[str, Any]) -> _Settings:
    own: dict[str, Any] = {}
    for name, record in _fields(kind).items():
        if record is not None:
            own[name] = _composed(record, values)
        elif name in values:
            own[name] = values[name]
    made = kind(**own)
    refuse_idle_settings(made, _hints_of(kind))
    return made


def part_of(settings: Any, kind: type[_Settings]) -> _Settings:
    """Give the part of settings that is of a kind: a record within them, or they themselves where they inherit it."""
    values = [settings, *(getattr(settings, field.name) for field in dataclasses.fields(settings))]
    return next(value for value in values if isinstance(value, kind))


def path_settings(kind: type) -> tuple[str, ...]:
    """List the values of a record, and of the records within it, that are paths, by name."""
    return tuple(name for name, hint in value_types(kind).items() if Path in (hint, *get_args(hint)))


class PartSettings:
    """Settings that are checked with the rest of a run's, which they are a part of."""

    @property
    def states_epsilon(self) -> bool:
        """Whether they ask for an epsilon of the run, whatever its privacy is, for which there may be a delta."""
        return False

    def check_run(self, run: Any) -> None:
        """Refuse what does not fit together, or not with the settings of the run. Raises ConfigurationError."""

    def of_run(self, model: str, private: bool) -> "PartSettings":
        """Give those of a run of a model, private or not, of settings that several runs have in common."""
        return self


def check_parts(settings: Any) -> None:
    """Check the parts of a run's settings, as `PartSettings` do: the records within them, and what they inherit."""
    for kind in type(settings).__mro__:
        if issubclass(kind, PartSettings) and "check_run" in vars(kind):
            kind.check_run(settings, settings)
    for field in dataclasses.fields(settings):
        if isinstance(part := getattr(settings, field.name), PartSettings):
            check_value_types(part)
            part.check_run(settings)


def states_epsilon(settings: Any) -> bool:
    """Say whether a part of a run's settings asks for an epsilon, whatever the run's privacy is."""
    parts = (getattr(settings, field.name) for field in dataclasses.fields(settings))
    return any(part.states_epsilon for part in parts if isinstance(part, PartSettings))


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
    return {name: _as_json(value) for name, value in flat_settings(settings).items()}


def defaults_as_json(kind: type) -> dict[str, Any]:
    """Make of the defaults of a record's fields what `settings_as_json` makes of their values."""
    return {name: _as_json(value) for name, value in default_settings(kind).items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(entry) if entry == math.inf else entry for entry in value]
    return str(value) if isinstance(value, Path) else value


def changes_in_words(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> str:
    """Say which of some settings were others in an earlier record; empty where none was."""
    changed = [name for name in names if before.get(name) != now[name]]
    return "; ".join(f"{setting(name)} was {before.get(name)} and is now {now[name]}" for name in changed)


@_cached
def _fields(kind: type) -> dict[str, type | None]:
    """From the names of a record's fields to the records that they hold, or None where they hold a value."""
    kinds = typing.get_type_hints(kind)
    names = (field.name for field in dataclasses.fields(kind))
    return {name: kinds[name] if dataclasses.is_dataclass(kinds[name]) else None for name in names}


@_cached
def value_types(kind: type) -> dict[str, Any]:
    """From the names of a record's values, and of those of the records within it, to their types."""
    types: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for name, record in _fields(kind).items():
        types |= {name: hints[name]} if record is None else value_types(record)
    return types


@_cached
def value_hints(kind: type) -> dict[str, Any]:
    """From the names of a record's values, and of those of the records within it, to their types with their ranges."""
    found: dict[str, Any] = {}
    hints = _hints_of(kind)
    for name, record in _fields(kind).items():
        found |= {name: hints[name]} if record is None else value_hints(record)
    return found


def check_value_types(settings: Any) -> None:
    """Make the values of a record, but for those of the records within it, of the types that its fields say.

    Numbers of NumPy become Python's, texts paths, lists tuples. A record calls it before it checks more.

    Raises:
      ConfigurationError: values fit their fields' types in no way, do not lie in the ranges of these, or do nothing
        beside others.
    """
    hints = _hints_of(type(settings))
    values = {name: getattr(settings, name) for name in hints}
    if problems := problems_of({name: (value, hints[name]) for name, value in values.items()}):
        raise ConfigurationError("\n".join(problems.values()))
    for name, value in values.items():
        object.__setattr__(settings, name, as_written(value, hints[name]))
    refuse_idle_settings(settings, hints)


@_cached
def _hints_of(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
