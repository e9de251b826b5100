"""The errors that a user can cause, told apart from defects of the code."""


class UserError(Exception):
    """A mistake in what the user asked for or supplied.

    The message names the file, field or client, what was found, what was expected and what to do. The
    command line prints it without a traceback and exits with status 2.
    """


class ConfigurationError(UserError):
    """A setting is out of range, or two settings contradict each other."""


class DataError(UserError):
    """An input file or a data store is missing, damaged or of the wrong kind."""


class DiskError(UserError):
    """A file cannot be written: the disk is full, or writing there is not permitted."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to another run."""


class ProcessLostError(Exception):
    """Another process of the same run has ended, so that this one cannot go on."""
