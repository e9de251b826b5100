"""What errors of a database say: whether it cannot be reached, or refuses."""

import sqlalchemy as sql

from fedlm.fl_core.deployment.state.state import NotLeadingError

# Classes of SQLSTATE: of connections, of a server that an operator stops or that starts, of too many connections.
_AWAY = ("08", "57P", "53300")
_COMING = ("starting up", "shutting down", "recovery", "too many", "connection slots")


def is_away(error: BaseException) -> bool:
    """Say whether an error of PostgreSQL is that it cannot be reached, is going down or coming up, or has no room for
    another connection."""
    if not isinstance(error, sql.exc.DBAPIError) or not hasattr(error.orig, "sqlstate"):
        return False
    # An error without a state is not one of the server's answers to a statement.
    state: str | None = getattr(error.orig, "sqlstate", None)
    lost = state is None or state.startswith(_AWAY)
    return error.connection_invalidated or (isinstance(error, sql.exc.OperationalError) and lost)


def is_refusal(error: BaseException) -> bool:
    """Say whether the server answered a first connection, and that it will not have it: waiting does not help."""
    said = str(error)
    return "FATAL:" in said and not any(word in said for word in _COMING)


def first_line(error: BaseException) -> str:
    """Give the beginning of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def not_leading(database: str) -> NotLeadingError:
    """Make the error of a process that leads no more."""
    return NotLeadingError(f"{database}: another process leads here now, so this one ends and wrote nothing since")
