"""Which settings do nothing beside others: a part of a field's type, as its range is.

A field of type `Annotated[Decay, OnlyWith("server_optimizer", "fedavgm")]` says it all: records that are checked, and
all commands, refuse another value than the default where the other setting makes it idle.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_origin

from fedlm.fl_core.errors import ConfigurationError, setting


class IdleSettingsError(ConfigurationError):
    """Settings do nothing beside others."""

    def __init__(self, message: str, names: Iterable[str] = ()):
        """Name the settings, too."""
        super().__init__(message)
        self.names = frozenset(names)


@dataclass(frozen=True, init=False)
class OnlyWith:
    """A setting does something only with some values of another one of its record.

    Attributes:
      other: the other setting's name.
      values: of the other one; if there are none, all but None, False, 0 and an empty tuple.
    """

    other: str
    values: tuple[Any, ...]

    def __init__(self, other: str, *values: Any):
        object.__setattr__(self, "other", other)
        object.__setattr__(self, "values", values)

    def is_idle(self, found: Any) -> bool:
        """Say whether the setting does nothing, given what the other one is."""
        return not (found in self.values if self.values else found)

    def refusal(self, settings: Any, name: str) -> str | None:
        """Say why a setting does nothing; None where it does something."""
        found = getattr(settings, self.other)
        if not self.is_idle(found):
            return None
        said = f"{setting(name)} is {getattr(settings, name)}, which does nothing"
        if not self.values:
            return f"{said} without {setting(self.other)}; give that too, or leave {setting(name)} out"
        others = [str(value) for value in self.values if value is not None]
        give = f"give {setting(self.other)} {' or '.join(others)}, or " if others else ""
        return f"{said} with {setting(self.other)} {found}; {give}leave {setting(name)} out"


def refuse_idle_settings(settings: Any, hints: dict[str, Any]) -> None:
    """Refuse, by an IdleSettingsError, values of a record that are not the defaults and do nothing, by the types of its
    fields."""
    problems: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        if getattr(settings, field.name) == field.default:
            continue
        found = (rule.refusal(settings, field.name) for rule in _rules(hints[field.name]))
        if (why := next(filter(None, found), None)) is not None:
            problems[field.name] = why
    if problems:
        raise IdleSettingsError("\n".join(problems.values()), problems)


def names_that_do_nothing(values: Mapping[str, Any], hints: Mapping[str, Any]) -> set[str]:
    """Find the settings, among flat ones, that do nothing beside the others, whatever they are, by their types."""
    return {
        name
        for name, hint in hints.items()
        if any(rule.other in values and rule.is_idle(values[rule.other]) for rule in _rules(hint))
    }


def _rules(hint: Any) -> list[OnlyWith]:
    metadata = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return [rule for rule in metadata if isinstance(rule, OnlyWith)]
