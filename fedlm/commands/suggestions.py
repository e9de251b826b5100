"""What somebody may have meant who typed a name that is not there."""

import difflib
from collections.abc import Collection, Iterable

from fedlm.commands.command_tree import commands_with_option

_AT_MOST = 3
_ALMOST_EQUAL, _SIMILAR = 0.8, 0.65


def closest(name: str, names: Iterable[str]) -> list[str]:
    """List the names that another one may stand for, most likely first, at most three.

    These are names written almost alike, names that have all its words, abbreviations (`lr`, `o`), and similar names.
    """
    plain = {other.replace("-", "_"): other for other in names}
    name = name.replace("-", "_")
    words = set(name.split("_"))
    found = difflib.get_close_matches(name, plain, _AT_MOST, _ALMOST_EQUAL)
    found += [other for other in plain if words <= set(other.split("_"))]
    if len(name) == 1:
        found += [other for other in plain if other.startswith(name)]
    else:
        found += [other for other in plain if name in "".join(word[:1] for word in other.split("_"))]
    if not found:
        found = difflib.get_close_matches(name, plain, _AT_MOST, _SIMILAR)
    return [plain[other] for other in dict.fromkeys(found)][:_AT_MOST]


def meant_options(unknown: Collection[str], options: Collection[str], written: str = "--") -> str:
    """Say what may have been meant by options that a command does not have, and which commands have them.

    Args:
      unknown: names of options, as fields are named.
      options: names of those that the command has.
      written: what an option begins with where they were found; "" in a file.
    """

    def flag(name: str) -> str:
        return written + name.replace("_", "-") if written else repr(name)

    hints = []
    for name in unknown:
        found = [flag(other) for other in closest(name, options)]
        elsewhere = commands_with_option(name)
        about = f" by {flag(name)}" if len(unknown) > 1 else ""
        if found:
            hints.append(f"did you mean {' or '.join(found)}{about}?")
        if elsewhere:
            hints.append(f"{flag(name)} is an option of {', '.join(f'`{prog}`' for prog in elsewhere)}")
    return " ".join(hints) or "--help-all lists all options"
