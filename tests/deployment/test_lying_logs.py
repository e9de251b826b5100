"""Servers that show devices two histories, go back, or ask for what is not in their log, and what real clients do."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedlm.commands.cli import main
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.errors import LogError
from fedlm.fedlm_client.own_participation import OwnParticipation
from fedlm.fedlm_client.transparency.heads import Head, signed_content
from fedlm.fedlm_client.transparency.receipts import Receipts, find_forks
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


class Silent(Logged):
    """Shows no head, and tells of the log what is asked for."""

    async def check_in(self, peer, request):
        reply = await super().check_in(peer, request)
        reply.ClearField("tree_head")
        return reply


def test_a_device_trains_for_no_server_that_hides_where_its_log_stands(tmp_path):
    honest = shown("a")
    meet(honest, tmp_path)
    silent = Silent(Hostile(asked(0)), honest._log)
    with pytest.raises(LogError, match="shows no log"):
        meet(silent, tmp_path)
    assert silent.inner.outcomes == []


def test_no_head_is_of_what_is_no_root():
    for root in (b"", bytes(31), bytes(33)):
        with pytest.raises(LogError, match="no root"):
            Head(KEY.public_key().public_bytes_raw(), 1, root, KEY.sign(signed_content(1, root))).checked()


class Device:
    """One of two whose owners exchange receipts, in a folder where both have a file."""

    def __init__(self, folder, name):
        self.own, self.name, self.file = folder / name, name, folder / "shared" / f"{name}.receipts.json"
        self.own.mkdir()
        self.file.parent.mkdir(exist_ok=True)

    def meet(self, server, exchange=True):
        receipts = Receipts(self.file.parent if exchange else self.file, self.name)
        meet(server, self.own, OwnParticipation(self.own / "record.json", receipts=receipts))


def audited(*devices):
    return main(["audit", "receipts", *(str(one.file) for one in devices)])


def test_two_devices_that_exchange_receipts_find_a_server_that_shows_each_a_history_of_its_own(tmp_path, capsys):
    ann, ben = Device(tmp_path, "ann"), Device(tmp_path, "ben")
    ann.meet(shown("a", "b"), exchange=False)
    forked = shown("a", "another", "c", "d")
    ben.meet(forked, exchange=False)
    assert audited(ann, ben) == 2, "sizes differ, and nobody has asked the server"
    later = Logged(Hostile(asked(14)), forked._log)
    with pytest.raises(LogError, match="shows two histories"):
        ben.meet(later)
    assert later.inner.outcomes == []
    assert audited(ann, ben) == 1
    assert "two histories of 4 leaves" in capsys.readouterr().out


def test_receipts_of_one_history_are_said_to_be_and_a_rollback_is_told(tmp_path, capsys):
    ann, ben, server = Device(tmp_path, "ann"), Device(tmp_path, "ben"), shown("a", "b")
    ann.meet(server)
    server._log.signed.add(leaves("c", "d"))
    ben.meet(Logged(Hostile(asked(0)), server._log))
    assert audited(ann, ben) == 0
    with pytest.raises(LogError, match="went back"):
        ben.meet(shown("a", "b"))
    assert audited(ben) == 2, "a device can swap two honest heads"
    ann.file.write_text(ann.file.read_text().replace('"size": 4', '"size": 5'))
    assert audited(ann) == 2
    assert "ann.receipts.json: not receipts of a device (the head of 5 leaves is not signed" in capsys.readouterr().err


def test_no_device_of_a_folder_stops_others_nor_takes_their_history(tmp_path, capsys):
    ann, server = Device(tmp_path, "ann"), shown("a")
    ann.meet(server)
    broken, made_up = (ann.file.with_name(f"{name}.receipts.json") for name in ("broken", "made up"))
    broken.write_text("{")
    ann.meet(Logged(Hostile(asked(14)), server._log))
    assert "broken.receipts.json: not receipts" in capsys.readouterr().err
    other = Head.read(MemoryLog(leaves=leaves("x")).signed.head())
    made_up.write_text(json.dumps({"format": "fedlm receipts 1", "log": {"head": other.as_json()}}))
    before = json.loads(ann.file.read_text())["log"]["runs"]
    with pytest.raises(LogError, match="whoever wrote it saw another log"):
        ann.meet(Logged(Hostile(asked(21)), server._log))
    assert main(["audit", "receipts", str(ann.file), str(made_up)]) == 2
    record = ann.own / "record.json"
    agreed = OwnParticipation(record, accept_plan=True, receipts=Receipts(ann.file.parent, "ann"))
    agreed.log.ask()
    agreed.log.see(server._log.signed.reply([]))
    assert json.loads(ann.file.read_text())["log"]["runs"] == before


def test_receipts_with_a_proof_that_does_not_hold_are_not_of_one_history():
    small, large = (Head.read(MemoryLog(KEY, leaves(*words)).signed.head()).as_json() for words in ("abc", "abcd"))
    kept = {"head": large, "proofs": [{"small": small, "large": large, "root": small["root"], "path": []}]}
    assert find_forks({"ann": kept, "ben": {"head": large}}) == ([], ["ann: no proof holds from 3 leaves to 4"])


def test_a_record_keeps_no_leaf_beyond_what_a_device_needs(tmp_path):
    log = MemoryLog(KEY)
    log.enter([messages.LogEntry(run=asked(0).run, release="x" * (64 << 10)).SerializeToString()])
    with pytest.raises(LogError, match="bytes, over 65536"):
        meet(Logged(Hostile(asked(0)), log), tmp_path)


def test_a_check_in_says_no_more_of_the_log_than_it_has_grown(tmp_path):
    """Bytes: a million leaves are twenty hashes, and a log that has not grown is nothing."""
    log = MemoryLog(KEY, leaves(*map(str, range(1000))))
    head = log.signed.head()
    assert messages.CheckInRequest(log_sizes=[head.size]).ByteSize() <= 4
    log.signed.add(leaves("more"))
    grown = log.signed.reply([1000])
    assert len(grown.SerializeToString()) <= 600
    assert len(messages.CheckInReply(tree_head=head).SerializeToString()) <= 145


def test_the_owner_may_accept_another_log_once(tmp_path):
    meet(shown("a"), tmp_path)
    agreed = Hostile(asked(14))
    meet(Logged(agreed, MemoryLog()), tmp_path, OwnParticipation(tmp_path / "record.json", accept_plan=True))
    assert agreed.outcomes == ["TRAINED"]


def test_an_empty_log_leaves_the_owners_word_for_what_follows(tmp_path):
    """A server that has just begun shows one, before it has told anything."""
    meet(shown("a"), tmp_path)
    watched = OwnParticipation(tmp_path / "record.json", accept_plan=True).log
    for log in (MemoryLog(), MemoryLog(leaves=leaves("b"))):
        watched.see(messages.CheckInReply(tree_head=log.signed.head()))
    with pytest.raises(LogError, match="another log"):
        watched.see(messages.CheckInReply(tree_head=MemoryLog(leaves=leaves("c")).signed.head()))
