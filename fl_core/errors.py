"""The errors that a user can cause, told apart from defects of the code."""


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
      no_such_folder: has no checkpoint
    """


class ProcessLostError(Exception):
    """Another process of the same run has ended, so that this one cannot go on."""
