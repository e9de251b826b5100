"""The numbers of clients, which all aggregators share; clients that come together are looked up together."""

import asyncio

from fedlm.fl_core.deployment.aggregators.shared_rounds import SharedRounds
from fedlm.fl_core.deployment.server.client_registry import ClientRegistry
from fedlm.fl_core.deployment.state.state import StateError


class ClientNumbers:
    """Has them in a registry."""

    def __init__(self, shared: SharedRounds, registry: ClientRegistry):
        """Look them up in what aggregators share."""
        self._shared, self._registry = shared, registry
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._finding: asyncio.Task | None = None

    async def find(self, identity: str) -> None:
        """Have a client's number in the registry; raises `StateError` where that fails."""
        if self._registry.number_of(identity) is not None:
            return
        if identity not in self._wanted:
            self._wanted[identity] = asyncio.get_running_loop().create_future()
        if self._finding is None or self._finding.done():
            self._finding = asyncio.create_task(self._find_all())
        await asyncio.shield(self._wanted[identity])

    async def _find_all(self) -> None:
        while wanted := self._wanted:
            self._wanted = {}
            try:
                numbers = await asyncio.to_thread(self._shared.number_clients, list(wanted))
            except StateError as error:
                for future in wanted.values():
                    future.set_exception(error)
                continue
            for identity, future in wanted.items():
                self._registry.add(numbers[identity], identity)
                future.set_result(None)
