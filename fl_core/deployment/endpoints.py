"""Where a process of a deployment's server is reached, by clients and operators, and what it waits for before it is."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fedlm.fl_core.deployment.event_log import event, warn
from fedlm.fl_core.deployment.leading import leading
from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics, HandlersWithMetrics
from fedlm.fl_core.deployment.operations.overview import ProcessShown, Shown
from fedlm.fl_core.deployment.protocol.interface import Handlers
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import UnreachableError
from fedlm.fl_core.deployment.transport.listeners import Listener
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.process_memory import frozen_start
from fedlm.fl_core.runs.files.run_lock import FolderLock

_GRACE_SECONDS, _SECONDS_BETWEEN_TRIES = 2.0, 0.5


@dataclass(frozen=True)
class Endpoints:
    """Where a process of the server is reached."""

    # makes what carries clients' calls to handlers; None where no client calls
    clients: Callable[[Handlers], Listener] | None = None
    # makes what shows operators the process; None where nobody looks
    operators: Callable[[Shown, CallMetrics], Listener] | None = None
    linger: float = 0.0  # seconds for which clients are still told that the run is over
    stands_by: bool = False  # whether another process may lead, whose place this one takes once it is gone

    @contextlib.asynccontextmanager
    async def listening(self, handlers: Handlers | None, shown: Shown) -> AsyncIterator[None]:
        """Listen for as long as the context lasts; raises `ConfigurationError` where an address cannot be had, which
        is waited for where another process led before."""
        async with contextlib.AsyncExitStack() as listening:
            listening.enter_context(frozen_start())
            metrics = CallMetrics()
            if self.clients is not None and handlers is not None:
                measured = handlers if self.operators is None else HandlersWithMetrics(handlers, metrics)
                await listen(listening, self.clients(measured), "clients", self.stands_by)
            # Last: who can ask whether it is ready is told that it is.
            if self.operators is not None:
                await listen(listening, self.operators(shown, metrics), "operators", self.stands_by)
            yield

    @contextlib.asynccontextmanager
    async def reached(self, url: str, knows: bool = True) -> AsyncIterator[Database]:
        """Open a database, and watch it for as long as the context lasts.

        While it cannot be reached it is waited for, and operators are told so.

        Args:
          knows: see `ProcessShown`.
        """
        database = Database(url, open_now=False)
        async with contextlib.AsyncExitStack() as opened:
            opened.callback(database.close)
            try:
                await asyncio.to_thread(database.open)
            except UnreachableError:
                async with self.listening(None, ProcessShown(database, lambda: False, knows)):
                    await database.open_once_reached()
            watching = asyncio.create_task(database.watch())
            opened.callback(watching.cancel)
            yield database

    @contextlib.asynccontextmanager
    async def leading(self, lock: FolderLock, database: Database, instead: str = setting("out")) -> AsyncIterator[None]:
        """Lead for as long as the context lasts, see `fedlm.fl_core.deployment.leading`; operators may ask a process
        that stands by whether it lives, where its address is its own."""
        async with contextlib.AsyncExitStack() as opened:
            async with contextlib.AsyncExitStack() as waiting:
                if self.stands_by:
                    shown = ProcessShown(database, lambda: False)
                    alone = dataclasses.replace(self, stands_by=False)
                    with contextlib.suppress(ConfigurationError):
                        await waiting.enter_async_context(alone.listening(None, shown))
                await opened.enter_async_context(leading(lock, database, self.stands_by, instead))
            yield


async def listen(listening: contextlib.AsyncExitStack, listener: Listener, whom: str, waits: bool = False) -> None:
    """Listen until a stack ends; where it `waits`, an address that somebody else has is waited for."""
    while True:
        try:
            await listener.start()
            break
        except ConfigurationError as error:
            if not waits:
                raise
            warn("address_not_free", to=whom, why=str(error))
            await asyncio.sleep(_SECONDS_BETWEEN_TRIES)
    listening.push_async_callback(listener.stop, _GRACE_SECONDS)
    event("listening", to=whom, port=listener.port)
