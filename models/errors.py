"""The errors that a user can cause and that models themselves can find; `fedlm.fl_core.errors` has them all.

A message names a setting by its field, `setting("cohort_size")`, and who reports the error words it for the reader: a
program has the argument `cohort_size`, the command line the option `--cohort-size`.
"""

import re
from collections.abc import Callable

_MARK = "\N{INVISIBLE SEPARATOR}"
_SETTING = re.compile(f"{_MARK}([^{_MARK}=]+)=?([^{_MARK}]*){_MARK}")
_PLAIN = re.compile(r"True|False|None|[-+.\d]+(e[-+]?\d+)?")


def setting(name: str, value: object = "") -> str:
    """Name a setting in the message of a UserError, by its field, and with a value to give it, where there is one.

    Example:
      >>> error = ConfigurationError(f"{setting('top_k')} is 0; leave it out, or give {setting('sampling', 'none')}")
      >>> print(error)
      top_k is 0; leave it out, or give sampling='none'
      >>> print(error.for_command_line())
      --top-k is 0; leave it out, or give --sampling none
    """
    return f"{_MARK}{name}{f'={value}' if value != '' else ''}{_MARK}"


class UserError(Exception):
    """A mistake in what the user asked for or supplied.

    The message names the file, field or client, what was found, what was expected and what to do. The
    command line prints it without a traceback and exits with status 2.

    Example:
      >>> import fedlm
      >>> try:
      ...     fedlm.TokenStore.open("no_such_folder")
      ... except UserError as error:
      ...     print(type(error).__name__)
      DataError
    """

    def __str__(self) -> str:
        return self._worded(_argument)

    def for_command_line(self) -> str:
        """Word the message for who typed a command: settings are options."""
        return self._worded(_option)

    def _worded(self, word: Callable[[re.Match[str]], str]) -> str:
        return _SETTING.sub(word, super().__str__())


def _argument(found: re.Match[str]) -> str:
    name, value = found.groups()
    return name + (f"={value if _PLAIN.fullmatch(value) else repr(value)}" if value else "")


def _option(found: re.Match[str]) -> str:
    name, value = found.groups()
    name = name.replace("_", "-")
    if value in ("True", "False"):
        return f"--{name}" if value == "True" else f"--no-{name}"
    return f"--{name} {value}".rstrip()


class ConfigurationError(UserError):
    """A setting is out of range, or two settings contradict each other.

    Example:
      >>> import fedlm
      >>> try:
      ...     fedlm.compose(fedlm.Experiment, model="cifg_tiny", data="runs/stdlib", rounds=0)
      ... except ConfigurationError as error:
      ...     print(error)
      rounds is 0, but must be at least 1
    """
