"""An audit log is as it was written, or it is said where not, also after a crash at any byte."""

import errno
import json
import os

import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.deployment.security.audit_log import AuditLog, BrokenChainError, Head, read_chain
from fedlm.fl_core.errors import DiskError


@pytest.fixture
def path(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(4):
        log.record(actor="ann", call="run.stop", on=f"run{number}", outcome="done")
    log.close()
    return tmp_path / "audit.jsonl"


def test_every_changed_added_and_removed_line_breaks_the_chain_where_it_is(path, capsys):
    lines = path.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["on"] for line in lines] == ["run0", "run1", "run2", "run3"]
    assert path.stat().st_mode & 0o777 == 0o600
    changed = {
        2: [lines[0], lines[1].replace(b"ann", b"ben"), *lines[2:]],
        3: [*lines[:2], lines[3]],
        4: [*lines[:3], lines[2], lines[3]],
        1: [lines[1], lines[0], *lines[2:]],
    }
    for number, others in changed.items():
        path.write_bytes(b"".join(others))
        assert main(["audit", "verify", str(path)]) == 1
        assert f"breaks at line {number}:" in capsys.readouterr().out
        with pytest.raises(BrokenChainError):
            AuditLog(path)


def test_missing_lines_and_a_chain_made_anew_are_noticed_by_a_head_that_was_kept(path, capsys):
    head = read_chain(path).head
    assert main(["audit", "verify", str(path), "--head", str(head)]) == 0
    whole = path.read_bytes()
    path.write_bytes(whole[: whole[:-1].rfind(b"\n") + 1])
    assert main(["audit", "verify", str(path)]) == 0
    assert main(["audit", "verify", str(path), "--head", str(head)]) == 1
    assert "line 4: lines up to 4 are missing" in capsys.readouterr().out
    with pytest.raises(BrokenChainError, match="line 2"):
        read_chain(path, Head(2, "0" * 64))


def test_a_crash_at_any_byte_of_a_line_loses_that_line_alone(path):
    whole = path.read_bytes()
    before = whole[:-1].rfind(b"\n") + 1
    for end in range(before, len(whole)):
        path.write_bytes(whole[:end])
        assert read_chain(path).head.line == 3
        log = AuditLog(path)
        log.record(call="run.stop")
        log.close()
        calls = [json.loads(line)["call"] for line in path.read_text().splitlines()]
        assert calls == ["run.stop"] * 3 + ["log.repair"] * (end > before) + ["run.stop"]
        read_chain(path)


def test_a_line_that_the_disk_refuses_is_not_there_and_the_next_follows_the_one_before(path, monkeypatch):
    log, sync = AuditLog(path), os.fsync

    def full(descriptor):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match=r"audit\.jsonl"):
        log.record(call="lost")
    monkeypatch.setattr(os, "fsync", sync)
    log.record(call="next")
    log.close()
    assert (read_chain(path).head.line, "lost" in path.read_text()) == (5, False)


def test_a_line_with_a_text_of_any_length_can_be_read_again(path):
    log = AuditLog(path)
    log.record(actor=None, call="GET /", outcome="refused", why="\N{GRINNING FACE}" * 2500)
    log.close()
    assert read_chain(path).head == log.head


def test_who_lost_the_lead_unawares_writes_over_no_line_of_who_leads_now(path):
    frozen = AuditLog(path)
    leader = AuditLog(path)
    leader.record(call="of who leads now")
    with pytest.raises(DiskError, match="another process has added"):
        frozen.record(call="of who was frozen")
    assert read_chain(path).head == leader.head
