"""Who may ask a server for what: every call by every role, and by everybody who has none."""

import asyncio
import json

import pytest

from fedlm.commands.cli import main
from fedlm.commands.deployment.operator_calls import OperatorCaller
from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics
from fedlm.fl_core.deployment.operations.gate import Refusals
from fedlm.fl_core.deployment.operations.listener import OperatorApplication, OperatorListener
from fedlm.fl_core.deployment.operations.operator_calls import Call
from fedlm.fl_core.deployment.runs.run_maker import RunMaker, ServerRules
from fedlm.fl_core.deployment.runs.run_server import RunServer
from fedlm.fl_core.deployment.runs.shown_runs import RunLogs, ShownRuns
from fedlm.fl_core.deployment.security.access_file import AccessFile
from fedlm.fl_core.deployment.security.audit_log import AuditLog, read_chain
from fedlm.fl_core.deployment.security.operator_access import token_hash
from fedlm.fl_core.deployment.security.people import Role
from fedlm.fl_core.deployment.security.revocations import Revocations, begin_list
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import sqlite_url
from fedlm.fl_core.errors import DiskError
from tests.support.issuer import Issuer
from tests.support.serving import refusing_at_once

REQUESTS = {
    Call.SHOW_STATUS: ("GET", "/status.json"),
    Call.SHOW_METRICS: ("GET", "/metrics"),
    Call.SHOW_RUN: ("GET", "/runs/one"),
    Call.SHOW_LOG: ("GET", "/runs/one/log/0"),
    Call.SUBMIT: ("POST", "/runs/new"),
    Call.PAUSE: ("POST", "/runs/one/pause"),
    Call.RESUME: ("POST", "/runs/one/resume"),
    Call.STOP: ("POST", "/runs/one/stop"),
    Call.APPROVE: ("POST", "/runs/waiting/approve"),
    Call.READ_AUDIT: ("GET", "/audit/0"),
    Call.REVOKE: ("POST", "/clients/eve/revoke"),
}
MAY = {
    Role.VIEWER: {Call.SHOW_STATUS, Call.SHOW_METRICS, Call.SHOW_RUN, Call.SHOW_LOG},
}
MAY[Role.OPERATOR] = MAY[Role.VIEWER] | {Call.SUBMIT, Call.PAUSE, Call.RESUME, Call.STOP}
MAY[Role.PRIVACY_APPROVER] = MAY[Role.VIEWER] | {Call.APPROVE}
MAY[Role.AUDITOR] = MAY[Role.VIEWER] | {Call.READ_AUDIT}
MAY[Role.KEY_ADMINISTRATOR] = MAY[Role.VIEWER] | {Call.REVOKE}
STRANGERS = {"no token": None, "another token": "x" * 64, "a hash as token": token_hash("viewer" + "t" * 64)}


@pytest.fixture(scope="module")
def issuer():
    with Issuer() as issuer:
        yield issuer


def bearer(role):
    return f"{role}{'t' * 64}"


async def asked(port, method, path, token):
    """The status of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    shown = "" if token is None else f"Authorization: Bearer {token}\r\n"
    kind = "Content-Type: application/json\r\nContent-Length: 2\r\n" if method == "POST" else ""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{shown}{kind}\r\n".encode())
    writer.write(b"{}" if method == "POST" else b"")
    answer = await reader.readline()
    writer.close()
    return int(answer.split()[1])


class Served:
    """A server of runs that trains none of them, with an access file that has somebody of each role."""

    def __init__(self, directory, issuer=None):
        rows = [f'[tokens.{role}]\nroles = ["{role}"]\nsha256 = ["{token_hash(bearer(role))}"]\n' for role in Role]
        groups = "".join(f'roles.the_{role} = ["{role}"]\n' for role in Role)
        openid = issuer and f'[openid]\nissuer = "{issuer.url}"\naudience = "fedlm"\nclaim = "groups"\n{groups}'
        (directory / "access.toml").write_text("".join([*rows, openid or ""]))
        self.directory = directory

    async def __aenter__(self):
        self.database = Database(sqlite_url(self.directory / "queue.db"))
        defaults = {"model": "tiny", "rounds": 5, "privacy": "none"}
        maker = RunMaker(lambda settings: defaults | settings, dict)
        server = RunServer(self.directory, self.database, maker, lambda row: None)
        server.submit("one", {})
        begin_list(self.directory)
        server.rules = ServerRules(keys=self.directory)
        # A private run that waits is in the tests of populations.
        server.approve = lambda name, by: server.queue.find("one")
        self.audit = AuditLog(self.directory / "audit.jsonl")
        self.shown = ShownRuns(server, self.database, RunLogs(self.directory / "logs"), self.audit)
        application = OperatorApplication(self.shown, CallMetrics(), AccessFile(self.directory / "access.toml"))
        self.listener = OperatorListener(application, "127.0.0.1:0")
        await self.listener.start()
        return self

    async def __aexit__(self, *failure):
        await self.listener.stop(0)
        self.audit.close()
        self.database.close()

    def lines(self):
        path = self.directory / "audit.jsonl"
        read_chain(path)
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("call", list(Call))
async def test_every_call_is_for_the_roles_of_the_table_and_the_audit_log_says_who_was_refused(tmp_path, call, issuer):
    method, path = REQUESTS[call]
    known = {role: bearer(role) for role in Role}
    known |= {f"openid:{role}": issuer.token(sub=str(role), groups=[f"the_{role}"]) for role in Role}
    nobody = issuer.token(sub="nobody", groups=[])
    strangers, found = STRANGERS | issuer.bad_tokens(), {}
    with refusing_at_once():
        async with Served(tmp_path, issuer) as served:
            for name, token in (known | strangers | {"openid:nobody": nobody}).items():
                found[name] = await asked(served.listener.port, method, path, token)
            lines = served.lines()
    may = {name for name in known if call in MAY[Role(name.removeprefix("openid:"))]}
    may_not = known.keys() - may | {"openid:nobody"}
    assert found == dict.fromkeys(may, 200) | dict.fromkeys(may_not, 403) | dict.fromkeys(strangers, 401)
    assert {line["actor"] for line in lines if line["outcome"] == "refused"} == {None, *may_not}
    done = {line["actor"] for line in lines if line["outcome"] == "done" and line["call"] == call}
    assert done == (set() if call in MAY[Role.VIEWER] else may)


async def test_what_the_audit_log_cannot_take_is_not_done(tmp_path, monkeypatch):
    def full(**facts):
        raise DiskError("audit.jsonl: no room")

    async with Served(tmp_path) as served:
        monkeypatch.setattr(served.audit, "record", full)
        assert await asked(served.listener.port, "POST", "/runs/one/stop", bearer(Role.OPERATOR)) == 503
        assert served.shown.read()["runs"][0]["state"] == "queued"


async def test_an_export_goes_on_where_it_ended_and_notices_another_log_at_the_server(tmp_path, capsys, monkeypatch):
    out = tmp_path / "export.jsonl"
    token = tmp_path / "mine.token"
    token.write_text(bearer(Role.AUDITOR))
    token.chmod(0o600)

    async def export():
        to = "--server", f"127.0.0.1:{served.listener.port}", "--token-file", str(token)
        return await asyncio.to_thread(main, ["audit", "export", str(out), *to])

    async with Served(tmp_path) as served:
        assert await export() == 0
        assert await asked(served.listener.port, "POST", "/runs/one/stop", bearer(Role.OPERATOR)) == 200
        assert await export() == 0
        whole = out.read_bytes()
        assert served.audit.read(0)["text"].encode().startswith(whole)
        assert b"run.stop" in whole
    (tmp_path / "audit.jsonl").unlink()
    async with Served(tmp_path) as served:
        assert await export() == 1
        for _ in range(20):
            served.audit.record(call="run.stop")
        assert await export() == 1
        monkeypatch.setenv("FEDLM_TOKEN", bearer(Role.VIEWER))
        assert await asyncio.to_thread(main, ["run", "list", "--server", f"127.0.0.1:{served.listener.port}"]) == 0
    said = capsys.readouterr().out
    assert "breaks at line" in said
    assert out.read_bytes() == whole


def test_an_export_writes_nothing_where_the_server_counts_wrongly(tmp_path, capsys, monkeypatch):
    answer = {"text": "{}\n", "offset": 1 << 40, "size": 1 << 50}
    monkeypatch.setattr(OperatorCaller, "get", lambda self, path: answer)
    assert main(["audit", "export", str(tmp_path / "export.jsonl")]) == 2
    assert "nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "export.jsonl").exists()


async def test_a_key_administrator_shuts_out_a_client_at_a_server_without_the_authoritys_key(tmp_path):
    async with Served(tmp_path) as served:
        port, token = served.listener.port, bearer(Role.KEY_ADMINISTRATOR)
        assert await asked(port, "POST", "/clients/eve/revoke", token) == 200
        assert await asked(port, "POST", "/clients/%20/revoke", token) == 409
    assert list(Revocations(tmp_path).entries()) == ["eve"]


def test_refused_calls_without_end_make_few_lines():
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    assert [refusals.told("ann") for _ in range(50)] == [1] + [0] * 49
    assert sum(refusals.told(f"host {number}") > 0 for number in range(2000)) == 9
    now[0] = 1.0
    assert refusals.told("host 1999") == 2


def test_approval_is_of_private_runs(tmp_path, capsys):
    access = tmp_path / "access.toml"
    access.write_text(f'[tokens.ann]\nroles = ["viewer"]\nsha256 = ["{token_hash("ann")}"]\n')
    words = f"server {tmp_path / 'runs'} --insecure --address 127.0.0.1:0 --operator-address 127.0.0.1:0 --approval"
    assert main([*words.split(), "--access", str(access)]) == 2
    assert "--epsilon" in capsys.readouterr().err
