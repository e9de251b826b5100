"""Several ports that one server listens on."""

from typing import Protocol


class Listener(Protocol):
    """What carries calls to handlers; `fedlm.fl_core.deployment.transport.grpc_server.GrpcServer` is one."""

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        ...

    async def start(self) -> None:
        """Begin to listen."""
        ...

    async def stop(self, grace: float) -> None:
        """Take no new call, and end those that last longer than a grace in seconds."""
        ...


class Listeners:
    """Listeners that start and stop together."""

    def __init__(self, *listeners: Listener):
        """Put them together.

        Args:
          *listeners: the first is the one that clients call.
        """
        self._listeners = listeners

    @property
    def port(self) -> int:
        """The port that clients call."""
        return self._listeners[0].port

    async def start(self) -> None:
        """See `Listener.start`; where one cannot, those before it are stopped again."""
        for number, listener in enumerate(self._listeners):
            try:
                await listener.start()
            except BaseException:
                for started in self._listeners[:number]:
                    await started.stop(0)
                raise

    async def stop(self, grace: float) -> None:
        """See `Listener.stop`."""
        for listener in self._listeners:
            await listener.stop(grace)
