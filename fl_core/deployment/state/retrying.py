"""Waiting for a database that is busy or gone: for one that cannot be reached without end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fedlm.fl_core.deployment.event_log import warn
from fedlm.fl_core.deployment.state.state import StateError, UnreachableError

RETRY_SECONDS, SECONDS_BETWEEN_TRIES = 60.0, 1.0
_Result = TypeVar("_Result")


def with_retries(work: Callable[[], _Result]) -> _Result:
    """Do something with the database that does no harm when it is done twice, again and again while it fails.

    Raises:
      StateError: it has failed for `RETRY_SECONDS`, but not because the database cannot be reached.
    """
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return work()
        except StateError as error:
            _give_up_after(deadline, error, "state_not_reached")
            time.sleep(SECONDS_BETWEEN_TRIES)


async def with_retries_async(
    work: Callable[[], Awaitable[_Result]], seconds: float | None = None, warning: str = "state_not_reached"
) -> _Result:
    """Do the same in an event loop, for so many seconds (`RETRY_SECONDS` where None), and log each failure."""
    deadline = time.monotonic() + (RETRY_SECONDS if seconds is None else seconds)
    while True:
        try:
            return await work()
        except StateError as error:
            _give_up_after(deadline, error, warning)
            await asyncio.sleep(SECONDS_BETWEEN_TRIES)


def _give_up_after(deadline: float, error: StateError, warning: str) -> None:
    if isinstance(error, UnreachableError):
        return
    if time.monotonic() > deadline:
        raise error
    warn(warning, why=str(error))
