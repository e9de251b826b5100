"""Servers that show devices two histories, go back, or ask for what is not in their log, and what real clients do."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import LogError
from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fl_core.deployment.transparency.log_handlers import HandlersWithLog
from tests.clients.fedlm_client.test_own_participation import Hostile, asked, meet
from tests.support.logged import Logged, MemoryLog

KEY = Ed25519PrivateKey.generate()


def leaves(*words):
    return [messages.LogEntry(run="another", statement=one).SerializeToString() for one in words]


class Omitting(Logged):
    """Tells a device of a run that is not in its log."""

    async def check_in(self, peer, request):
        honest = await HandlersWithLog.check_in(self, peer, request)
        if honest.HasField("selected"):
            honest.selected.run = "hidden"
        return honest


def shown(*words):
    """A server whose log has these leaves, then what it tells the device."""
    return Logged(Hostile(asked(0), asked(7)), MemoryLog(KEY, leaves(*words)))


def test_a_server_that_was_seen_may_show_a_longer_log_alone(tmp_path):
    first = shown("a", "b")
    meet(first, tmp_path)
    assert first.inner.outcomes == ["TRAINED", "TRAINED"]
    longer = Hostile(asked(14))
    lies = {
        "went back": shown(),
        "shows two histories|does not prove": shown("a", "c", "d", "e"),
        "another log": Logged(Hostile(asked(14))),
    }
    for words, lying in lies.items():
        with pytest.raises(LogError, match=words):
            meet(lying, tmp_path)
        assert lying.inner.outcomes == []
    first._log.signed.add(leaves("later"))
    meet(Logged(longer, first._log), tmp_path)
    assert longer.outcomes == ["TRAINED"], "the honest history goes on"


def test_a_device_trains_for_no_run_that_is_not_in_the_log(tmp_path):
    hiding = Omitting(Hostile(asked(0)), MemoryLog(KEY))
    with pytest.raises(LogError, match="does not have what it asks for in its run 'hidden'"):
        meet(hiding, tmp_path)
    assert hiding.inner.outcomes == []


def test_the_owner_may_accept_another_log_once(tmp_path):
    meet(shown("a"), tmp_path)
    agreed = Hostile(asked(14))
    meet(Logged(agreed, MemoryLog()), tmp_path, OwnParticipation(tmp_path / "record.json", accept_plan=True))
    assert agreed.outcomes == ["TRAINED"]
