"""The errors that a user can cause and that models themselves can find; `fedlm.fl_core.errors` has them all."""


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
