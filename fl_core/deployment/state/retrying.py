"""Waiting for a database that is busy or gone."""

import time
from collections.abc import Callable
from typing import TypeVar

from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.state.state import StateError

RETRY_SECONDS, SECONDS_BETWEEN_TRIES = 60.0, 1.0
_Result = TypeVar("_Result")


def with_retries(work: Callable[[], _Result]) -> _Result:
    """Do something with the database, again and again for a while where it fails.

    Args:
      work: what to do; doing it twice does no harm.

    Returns:
      Its result.

    Raises:
      StateError: it has failed for `RETRY_SECONDS`.
    """
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return work()
        except StateError as error:
            if time.monotonic() > deadline:
                raise
            warn("state_not_reached", why=str(error))
            time.sleep(SECONDS_BETWEEN_TRIES)
