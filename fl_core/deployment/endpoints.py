"""Where a process of a deployment's server is reached, and the database that it waits for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fedlm.fl_core.deployment.event_log import event
from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics, HandlersWithMetrics
from fedlm.fl_core.deployment.operations.overview import ProcessShown, Shown
from fedlm.fl_core.deployment.protocol.interface import Handlers
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import UnreachableError
from fedlm.fl_core.deployment.transport.listeners import Listener
from fedlm.fl_core.process_memory import frozen_start

_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Endpoints:
    """Where a process of the server is reached."""

    # makes what carries clients' calls to handlers; None where no client calls
    clients: Callable[[Handlers], Listener] | None = None
    # makes what shows operators the process; None where nobody looks
    operators: Callable[[Shown, CallMetrics], Listener] | None = None
    linger: float = 0.0  # seconds for which clients are still told that the run is over

    @contextlib.asynccontextmanager
    async def listening(self, handlers: Handlers | None, shown: Shown) -> AsyncIterator[None]:
        """Listen for as long as the context lasts; raises `ConfigurationError` where an address cannot be had."""
        async with contextlib.AsyncExitStack() as listening:
            listening.enter_context(frozen_start())
            metrics = CallMetrics()
            if self.clients is not None and handlers is not None:
                measured = handlers if self.operators is None else HandlersWithMetrics(handlers, metrics)
                await listen(listening, self.clients(measured), "clients")
            # Last: who can ask whether it is ready is told that it is.
            if self.operators is not None:
                await listen(listening, self.operators(shown, metrics), "operators")
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


async def listen(listening: contextlib.AsyncExitStack, listener: Listener, whom: str) -> None:
    """Let a listener listen for as long as a context lasts; the event log names `whom` to."""
    await listener.start()
    listening.push_async_callback(listener.stop, _GRACE_SECONDS)
    event("listening", to=whom, port=listener.port)
