"""Libraries that come with an extra of the package, and the error where they are not installed."""

import contextlib
from collections.abc import Iterator
from typing import Literal

from fedlm.fl_core.errors import UserError

Extra = Literal["deploy", "data", "pretrain", "evaluation", "litert", "tracing"]


class MissingExtraError(UserError):
    """A library is not installed that comes with an extra."""


@contextlib.contextmanager
def extra(name: Extra) -> Iterator[None]:
    """Say which extra to install where an import within this context finds no library.

    Raises:
      MissingExtraError: a library is not installed; the message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "fedlm":
            raise
        raise MissingExtraError(
            f"{error.name} is not installed. It comes with an extra: pip install 'fedlm[{name}]', or in a clone of the "
            f"repository pip install -c constraints.txt '.[{name}]'"
        ) from error
