"""The errors that a user can cause, told apart from defects of the code."""

from fedlm.models.errors import ConfigurationError as ConfigurationError
from fedlm.models.errors import UserError as UserError
from fedlm.models.errors import setting as setting


class DataError(UserError):
    """An input file or a data store is missing, damaged or of the wrong kind.

    Example:
      >>> import fedlm
      >>> try:
      ...     fedlm.DataInMemory.from_texts({"ann": "the cat sat"})
      ... except DataError as error:
      ...     print(error)
      client 'ann': found one text, expected a list of texts
    """


class DiskError(UserError):
    """A file cannot be written: the disk is full, or writing there is not permitted."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to another run.

    Example:
      >>> import fedlm
      >>> from pathlib import Path
      >>> try:
      ...     fedlm.open_model(Path("no_such_folder"))
      ... except CheckpointError as error:
      ...     print(str(error).partition(";")[0])
      no_such_folder: there is no such folder
    """


class ProcessLostError(Exception):
    """Another process of the same run has ended, so that this one cannot go on."""
