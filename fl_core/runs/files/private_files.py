"""The folder of a private run is its operator's alone: it has numbers that are not private, and the noise's secret."""

import os
import stat
from pathlib import Path

from fedlm.fl_core.errors import ConfigurationError

# The beginnings of names; whatever else is in a folder is not ours to change.
_WRITTEN = (
    *("checkpoints", "tensorboard", "privacy", "metrics", "summary", "test_clients", "evaluation_", "personalization_"),
    *("state.db", "run", ".lock", "frozen"),
)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private(directory: Path) -> None:
    """Take the folder of a run, and all that runs write there, away from everybody but its owner: 0700, and 0600 of
    files.

    The folder comes first: nobody else gets at a file that something writes into it later with wider rights.

    Raises:
      ConfigurationError: the folder, or a part of it, belongs to somebody else.
    """
    written = [one for one in directory.iterdir() if one.name.startswith(_WRITTEN)]
    for path in (directory, *written, *(inner for one in written if one.is_dir() for inner in one.rglob("*"))):
        try:
            mode = os.lstat(path).st_mode
            if mode & _OTHERS and not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
        except FileNotFoundError:
            # What is written beside its place, and renamed, may be gone.
            continue
        except PermissionError as error:
            raise ConfigurationError(
                f"{path}: can be read by others, and belongs to somebody else, so that its rights cannot be "
                "taken away; give a private run a folder of your own"
            ) from error
