"""Which settings do nothing beside others: a part of a field's type, as its range is.

A field of type `Annotated[Decay, OnlyWith("server_optimizer", "fedavgm")]` says it all: records that are checked, and
all commands, refuse another value than the default where the other setting makes it idle.
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, get_origin

from fedlm.fl_core.errors import ConfigurationError, setting


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

    def refusal(self, settings: Any, name: str) -> str | None:
        """Say why a setting does nothing; None where it does something."""
        found = getattr(settings, self.other)
        if found in self.values if self.values else found:
            return None
        said = f"{setting(name)} is {getattr(settings, name)}, which does nothing"
        if not self.values:
            return f"{said} without {setting(self.other)}; give that too, or leave {setting(name)} out"
        others = [str(value) for value in self.values if value is not None]
        give = f"give {setting(self.other)} {' or '.join(others)}, or " if others else ""
        return f"{said} with {setting(self.other)} {found}; {give}leave {setting(name)} out"


def refuse_idle_settings(settings: Any, hints: dict[str, Any]) -> None:
    """Refuse, by a ConfigurationError, values of a record that are not the defaults and do nothing, by the types of its
    fields."""
    problems: list[str] = []
    for field in dataclasses.fields(settings):
        hint = hints[field.name]
        if get_origin(hint) is not Annotated or getattr(settings, field.name) == field.default:
            continue
        rules = [rule for rule in hint.__metadata__ if isinstance(rule, OnlyWith)]
        problems += [why for rule in rules if (why := rule.refusal(settings, field.name)) is not None][:1]
    if problems:
        raise ConfigurationError("\n".join(problems))
