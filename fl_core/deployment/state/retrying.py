"""Waiting for a database that is busy or gone."""

import time
from collections.abc import Callable
from typing import TypeVar

from fedlm.fl_core.deployment.server.events import warn
from fedlm.fl_core.deployment.state.state import StateError

PATIENCE_SECONDS, TRIED_AGAIN_AFTER = 60.0, 1.0
_Result = TypeVar("_Result")


def patiently(work: Callable[[], _Result]) -> _Result:
    """Do something with the database, again and again for a while where it fails.

    Args:
      work: what to do; doing it twice does no harm.

    Returns:
      Its result.

    Raises:
      StateError: it has failed for `PATIENCE_SECONDS`.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return work()
        except StateError as error:
            if time.monotonic() > deadline:
                raise
            warn("state_not_reached", why=str(error))
            time.sleep(TRIED_AGAIN_AFTER)
