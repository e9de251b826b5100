"""Handlers of a few lines behind a log of what they tell, as every server has one."""

from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fl_core.deployment.transparency.log_handlers import HandlersWithLog
from fedlm.fl_core.deployment.transparency.signed_log import SignedLog


class MemoryLog:
    """A `StoredLog` that is gone with its process."""

    def __init__(self, key=None, leaves=()):
        self.signed = SignedLog(key or Ed25519PrivateKey.generate())
        self.signed.add(leaves)

    def enter(self, leaves):
        self.signed.add(self.signed.missing(leaves))

    def refresh(self):
        pass


class Logged(HandlersWithLog):
    """Handlers whose runs are stated to be what they are; all of a process are of one server, unless a log is given."""

    of_process = MemoryLog()

    def __init__(self, inner, log=of_process):
        super().__init__(inner, log)

    async def check_in(self, peer, request):
        reply = await super().check_in(peer, request)
        if reply.HasField("selected"):
            about = {"population": reply.selected.population, "run": reply.selected.run}
            self._log.enter([messages.LogEntry(statement="{}", **about).SerializeToString()])
        return reply


class LoggedChannel:
    """A `Channel` of a few lines, to a server with a log."""

    def __init__(self, inner):
        self._inner = inner
        self._logged = Logged(SimpleNamespace(check_in=lambda peer, request: inner.check_in(request)))

    async def check_in(self, request):
        return await self._logged.check_in("", request)

    async def log(self, request):
        return await self._logged.log("", request)

    def __getattr__(self, name):
        return getattr(self._inner, name)
