"""What somebody may have meant who typed a name that is not there."""

import difflib
from collections.abc import Collection, Iterable, Mapping

from fedlm.fl_core.errors import ConfigurationError

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


class UnknownOptionsError(ConfigurationError):
    """A command has no such options.

    Attributes:
      unknown: their names, as fields are named.
    """

    def __init__(self, what: str, unknown: Collection[str], options: Collection[str], written: str = "--"):
        """Say what may have been meant.

        Args:
          what: what was found, in words.
          unknown: names of options.
          options: names of those that the command has.
          written: what an option begins with where they were found; "" in a file.
        """
        self.unknown = list(unknown)
        self._what, self._options, self._written = what, list(options), written
        super().__init__(self.worded({}))

    def worded(self, elsewhere: Mapping[str, Collection[str]]) -> str:
        """Say it in words, with the commands that have an option of the name."""
        hints = []
        for name in self.unknown:
            about = f" by {self._flag(name)}" if len(self.unknown) > 1 else ""
            if found := [self._flag(other) for other in closest(name, self._options)]:
                hints.append(f"did you mean {' or '.join(found)}{about}?")
            if commands := elsewhere.get(name):
                hints.append(f"{self._flag(name)} is an option of {', '.join(f'`{prog}`' for prog in commands)}")
        return f"{self._what}; {' '.join(hints) or '--help-all lists all options'}"

    def _flag(self, name: str) -> str:
        return self._written + name.replace("_", "-") if self._written else repr(name)


class UnknownCommandError(ConfigurationError):
    """A command does not lead to such a sub-command.

    Attributes:
      word: that was typed.
    """

    def __init__(self, prog: str, kind: str, word: str, choices: Iterable[str]):
        """Say what may have been meant by the word after `prog`, which leads to sub-commands of a kind."""
        self.word = word
        self._prog, self._kind, self._choices = prog, kind, list(choices)
        super().__init__(self.worded([]))

    def close(self) -> list[str]:
        """List the sub-commands that may have been meant."""
        return [f"{self._prog} {name}" for name in closest(self.word, self._choices)]

    def worded(self, elsewhere: Collection[str]) -> str:
        """Say it in words, with other commands of that name."""
        meant = " or ".join(f"`{command}`" for command in self.close() or elsewhere)
        hint = f"did you mean {meant}? Or " if meant else ""
        return f"unknown {self._kind} {self.word!r}; {hint}choose from {', '.join(self._choices)}"
