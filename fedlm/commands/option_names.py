"""Messages in the words of who typed a command: a setting is named as its option."""

import re
from collections.abc import Collection
from typing import Any, get_args

from fedlm.fl_core.composed_settings import value_types


def named_as_options(message: str, commands: Collection[type]) -> str:
    """Name settings as options in a message that names them as arguments.

    A name of several words is a setting wherever it stands, but for those that are values of others too. All other
    names are common words as well, and are settings where a message speaks of them as it does of settings.

    Args:
      message: of a UserError.
      commands: the records of options, of one of which the message speaks.
    """
    kinds = {name: kind for command in commands for name, kind in value_types(command).items()}
    values = {value for kind in kinds.values() for value in _literals(kind)}
    several = [name for name in kinds if "_" in name and name not in values]
    others = [name for name in kinds if name not in several]
    message = _replaced(rf"(?<![\w./'\"-]){_any(several)}(?![\w'\"-]|[.]\w)", message)
    message = _replaced(rf"(?m)^{_any(others)}(?= (?:is|are|has|needs|does)\b)", message)
    spoken_of = r"(?P<before>\b(?:give|leave|without|but) )"
    return _replaced(rf"{spoken_of}{_any(others)}(?=(?: is| out| too)\b|[;,.]|$)", message)


def _literals(kind: Any) -> list[Any]:
    """List the texts among the parts of a type, which are what it takes by name."""
    parts = get_args(kind)
    return [value for part in parts for value in ([part] if isinstance(part, str) else _literals(part))]


def _any(names: list[str]) -> str:
    return f"(?P<name>{'|'.join(sorted(names, key=len, reverse=True)) or '(?!)'})"


def _replaced(pattern: str, message: str) -> str:
    def option(found: re.Match[str]) -> str:
        return f"{found.groupdict().get('before', '')}--{found['name'].replace('_', '-')}"

    return re.sub(pattern, option, message)
