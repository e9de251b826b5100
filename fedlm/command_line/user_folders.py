"""Where a user's programs keep what they write for themselves."""

import os
from pathlib import Path


def user_folder(variable: str, below_home: str) -> Path:
    """Name fedlm's folder by the XDG base directory specification, which has relative paths ignored.

    Args:
      variable: the environment variable that names the folder of all programs.
      below_home: that folder where the variable does not name one.

    Raises:
      RuntimeError: the user has no home.
    """
    given = Path(os.environ.get(variable, ""))
    return (given if given.is_absolute() else Path.home() / below_home) / "fedlm"
