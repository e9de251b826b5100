"""A server of several runs: its queue, what clients are told between runs, and what operators may ask."""

import asyncio
import contextlib
import functools
import json
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta

import pytest

from fedlm.commands.cli import main
from fedlm.commands.deployment.operator_calls import OperatorCaller
from fedlm.fedlm_client import messages_pb2 as messages
from fedlm.fedlm_client.link.protocol import PROTOCOL
from fedlm.fl_core.composed_settings import compose, settings_as_json
from fedlm.fl_core.deployment import leading
from fedlm.fl_core.deployment.event_log import event
from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics
from fedlm.fl_core.deployment.operations.listener import OperatorApplication, OperatorListener
from fedlm.fl_core.deployment.roles import serve_runs
from fedlm.fl_core.deployment.runs import current_runs, run_server
from fedlm.fl_core.deployment.runs.current_runs import AnsweringRun, CurrentRuns
from fedlm.fl_core.deployment.runs.held_run import HeldRun
from fedlm.fl_core.deployment.runs.run_maker import RunMaker
from fedlm.fl_core.deployment.runs.run_queue import FAILED, FINISHED, PAUSED, QUEUED, STOPPED, RunQueue
from fedlm.fl_core.deployment.runs.run_server import RunServer
from fedlm.fl_core.deployment.runs.scheduling import Scheduling
from fedlm.fl_core.deployment.runs.shown_runs import RunLogs, ShownRuns
from fedlm.fl_core.deployment.security.audit_log import AuditLog
from fedlm.fl_core.deployment.server.settings import Deployment
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import DATABASE_FILE, sqlite_url
from fedlm.fl_core.errors import ConfigurationError, DiskError
from fedlm.fl_core.runs.files.run_lock import FolderLock
from tests.deployment import small_deployment as small
from tests.support.browser import MISSING, Browser, find_browser


@pytest.fixture
def queue(tmp_path):
    database = Database(sqlite_url(tmp_path / "queue.db"))
    yield RunQueue(database)
    database.close()


def test_a_run_is_submitted_once_and_what_is_stopped_is_never_trained(queue):
    for name in ("one", "two", "one"):
        queue.submit(name, {"rounds": 1})
    with pytest.raises(ConfigurationError, match="another run 'one'"):
        queue.submit("one", {"rounds": 2})
    queue.become("one", PAUSED)
    assert (queue.next_runs()["default"].name, len(queue.all())) == ("two", 2)
    queue.become("one", QUEUED)
    assert queue.next_runs()["default"].name == "one", "it is back in its place"
    queue.become("one", STOPPED)
    with pytest.raises(ConfigurationError, match="is stopped"):
        queue.become("one", QUEUED)


def moment(seconds):
    return (datetime.now() + timedelta(seconds=seconds)).isoformat()


def test_the_next_run_is_the_first_of_the_highest_priority_whose_time_has_come(queue):
    for name, settings in {
        "later": {"priority": 9, "not_before": moment(3600)},
        "over": {"priority": 9, "not_after": moment(0.5)},
        "first": {},
        "second": {"priority": 2, "not_before": moment(-1), "not_after": moment(3600)},
        "third": {"priority": 2},
    }.items():
        queue.submit(name, settings)
    with pytest.raises(ConfigurationError, match="which has passed"):
        queue.submit("late", {"not_after": moment(-1)})
    time.sleep(0.6)
    order = []
    while (run := queue.next_runs().get("default")) is not None:
        order.append(run.name)
        queue.become(run.name, FINISHED)
    assert order == ["second", "third", "first"]
    assert [run.name for run in queue.overdue()] == ["over"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"not_before": "tomorrow"}, "--not-before is 'tomorrow', but must be a moment such as"),
        ({"not_after": "9999-12-31T23:59-23:59"}, "must be a moment"),
        ({"not_before": "2026-12-01T22:00", "not_after": "2026-12-01T22:00"}, "must be later than --not-before"),
        ({"priority": 1001}, "--priority is 1001"),
    ],
)
def test_moments_and_priorities_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(ConfigurationError) as refused:
        compose(Scheduling, **changes)
    assert words in refused.value.for_command_line()


async def test_a_run_begins_and_is_stopped_at_its_moments(tmp_path, monkeypatch):
    monkeypatch.setattr(run_server, "_LOOK_SECONDS", 0.05)
    begun = []

    def refuse(settings):
        begun.append(settings["name"])
        raise ConfigurationError("not here")

    with opened_server(tmp_path, lambda settings: refuse(settings) if started else None) as server:
        started = False
        server.submit("later", {"name": "later", "not_before": moment(3600)})
        server.submit("soon", {"name": "soon", "not_before": moment(5)})
        server.submit("ends", {"name": "ends", "not_before": moment(-9), "not_after": moment(2)})
        server.become("ends", PAUSED)
        waits = ShownRuns(server, None, RunLogs(tmp_path / "logs"), None).read()["runs"][0]["not_before"]
        started, training = True, asyncio.create_task(server.train())
        while server.queue.find("ends").state == PAUSED and not training.done():
            await asyncio.sleep(0.01)
        assert (begun, server.queue.find("ends")[3:5]) == ([], (STOPPED, "its not_after has passed"))
        with pytest.raises(ConfigurationError, match="trained no more"):
            server.become("ends", QUEUED)
        while server.queue.find("soon").state == QUEUED and not training.done():
            await asyncio.sleep(0.01)
        server.drain()
        await training
        assert (begun, waits) == (["soon"], server.queue.find("later").begins)


def test_a_run_that_is_over_is_extended_as_another_that_begins_with_its_model(tmp_path, monkeypatch, capsys):
    posted = {}
    settings = {"rounds": 5, "seed": 3, "max_participations": 2, "target_epsilon": 4.0}
    run = {"name": "one", "state": QUEUED, "folder": "/runs/one", "first_round": 0, "released": 0, "settings": settings}
    answer = {
        "name": "two",
        "population": "default",
        "model": "tiny",
        "doing": None,
        "state": QUEUED,
        "reason": "",
        "not_before": None,
    }
    answer |= {"released": 0, "rounds": 7, "submitted": 0.0}
    monkeypatch.setattr(OperatorCaller, "get", lambda self, path: run)
    monkeypatch.setattr(OperatorCaller, "post", lambda self, path, settings: posted.update(settings, at=path) or answer)
    for changes, words in (
        ({"state": QUEUED}, "stop it first"),
        ({"state": FINISHED}, "released no model"),
        ({"released": 5}, "--target-epsilon 4.0 in all"),
    ):
        run |= changes
        assert main(["run", "extend", "one", "two", "--rounds", "7"]) == 2
        assert words in capsys.readouterr().err
    settings["target_epsilon"] = None
    assert main(["run", "extend", "one", "two", "--rounds", "7"]) == 0
    whole = {"at": "/runs/two", "seed": 3, "rounds": 7, "init_from": "/runs/one", "initial_data": "same"}
    whole |= {"not_before": None, "not_after": None, "max_participations": None, "target_epsilon": None}
    assert posted == whole


async def test_a_run_that_cannot_be_trained_holds_no_other_back_though_it_is_stopped_meanwhile(tmp_path, queue):
    def refuse(settings):
        if settings["stopped"]:
            queue.become("one", STOPPED)
        raise ConfigurationError("the tokenizer is gone")

    for name in ("one", "two"):
        queue.submit(name, {"stopped": name == "one"})
    database = Database(sqlite_url(tmp_path / "queue.db"))
    server = RunServer(tmp_path, database, RunMaker(dict, refuse), lambda row: None)
    training = asyncio.create_task(server.train())
    while queue.next_runs() and not training.done():
        await asyncio.sleep(0.01)
    server.drain()
    await training
    database.close()
    assert [(run.state, run.reason) for run in queue.all()] == [(STOPPED, ""), (FAILED, "the tokenizer is gone")]


async def test_a_run_that_another_leads_is_waited_for_and_not_failed(tmp_path, queue, monkeypatch):
    def refuse(*words):
        raise ConfigurationError("held at last")

    queue.submit("one", {})
    (out := tmp_path / "runs/one").mkdir(parents=True)
    monkeypatch.setattr(leading, "_PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(HeldRun, "open", refuse)
    database, lock = Database(sqlite_url(out / DATABASE_FILE)), FolderLock(out)
    lead, look = leading.Lead(database, lock), leading.Lead.look
    assert lead.look(0.0)

    def look_and_end(self, now):
        found = look(self, now)
        lead.end()
        return found

    monkeypatch.setattr(leading.Lead, "look", look_and_end)
    with opened_server(tmp_path, lambda settings: small.task(small.deployment())) as server:
        training = asyncio.create_task(server.train())
        while queue.find("one").state == QUEUED and not training.done():
            await asyncio.sleep(0.01)
        server.drain()
        await training
    database.close()
    lock.close()
    assert queue.find("one").reason == "held at last"


@contextlib.contextmanager
def opened_server(directory, make_task=dict):
    database = Database(sqlite_url(directory / "queue.db"))
    defaults = {"model": "tiny", "rounds": 5, "privacy": "none"}
    maker = RunMaker(lambda settings: defaults | settings, make_task)
    with contextlib.closing(database):
        yield RunServer(directory, database, maker, lambda row: None)


async def test_a_run_whose_settings_leave_defaults_out_is_the_same_as_one_that_says_them(tmp_path):
    with opened_server(tmp_path) as server:
        server.submit("one", {})
        server.submit("one", {"rounds": 5})
        (run,) = ShownRuns(server, None, RunLogs(tmp_path / "logs"), None).read()["runs"]
    assert run["rounds"] == 5


async def test_a_full_disk_ends_the_server_and_leaves_its_runs_queued(tmp_path, queue):
    def full(settings):
        raise DiskError("no room")

    queue.submit("one", {})
    with opened_server(tmp_path, full) as server, pytest.raises(DiskError):
        await asyncio.wait_for(server.train(), 60)
    assert queue.find("one").state == QUEUED


async def test_damaged_metrics_of_one_run_hide_no_other(tmp_path):
    with opened_server(tmp_path) as server:
        for name, metrics in (("one", "{}\n{}\n"), ("two", '{"round": 3}\n')):
            server.submit(name, {})
            server.folder(name).mkdir(parents=True)
            (server.folder(name) / "metrics.jsonl").write_text(metrics)
        one, two = ShownRuns(server, None, RunLogs(tmp_path / "logs"), None).read()["runs"]
    assert ("line 1" in one["reason"], two["released"]) == (True, 4)


def test_a_log_goes_on_after_a_long_line_and_a_cut_one(tmp_path):
    logs = RunLogs(tmp_path)
    (tmp_path / "one.jsonl").write_text('{"a": 1}\n{"cut{"b": 2}\n"' + "x" * (1 << 17) + '"\n{"c": 3}\n{"unfin')
    lines, found = [], {"offset": -1}
    while (before := max(found["offset"], 0)) != (found := logs.read("one", before))["offset"]:
        lines += found["lines"]
    assert [line for line in lines if isinstance(line, dict)] == [{"a": 1}, {"c": 3}]


async def test_events_of_clients_calls_name_the_run(caplog):
    class Telling:
        async def check_in(self, peer, request):
            event("asked")
            return messages.CheckInReply()

        async def download(self, peer, request, bytes_at_once):
            event("sent")
            yield b"chunk"

    runs = CurrentRuns()
    runs.begin(AnsweringRun("one", "default", Telling(), lambda peer: False))
    with caplog.at_level("INFO", "fedlm.serving"):
        await runs.check_in("ann", messages.CheckInRequest(protocol=PROTOCOL))
        async for _ in runs.download("ann", None):
            event("outside")
    assert [record.fields.get("run") for record in caplog.records] == ["one", "one", None]


@pytest.mark.parametrize("name", ["first/stop", "first#2", "my run", "größe"])
def test_what_is_no_name_of_a_run_is_sent_to_no_server(name, capsys):
    for action in ("show", "stop", "logs"):
        assert main(["run", action, name]) == 2
        assert "digits" in capsys.readouterr().err


def test_a_run_is_shown_with_the_settings_that_were_chosen(tmp_path, monkeypatch, capsys):
    settings = settings_as_json(small.deployment(rounds=7))
    shown = {
        "name": "one",
        "population": "default",
        "model": settings["model"],
        "state": QUEUED,
        "doing": None,
        "rounds": 7,
        "released": 0,
    }
    shown |= {"reason": "", "submitted": 0.0, "first_round": 0, "round": None, "not_before": None}
    shown |= {
        "folder": str(tmp_path),
        "summary": None,
        "submitted_by": "ann",
        "approved_by": "",
        "settings": settings,
        "status": None,
    }
    monkeypatch.setattr(OperatorCaller, "get", lambda self, path: shown)
    assert main(["run", "show", "one"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("settings: ")]
    assert "--rounds 7" in line
    assert "--server-optimizer" not in line


async def test_a_client_that_one_run_needs_no_more_comes_back_for_the_next():
    class Done:
        async def check_in(self, peer, request):
            return messages.CheckInReply(come_back=messages.ComeBack(seconds=1, done=True, finished=False))

    request, runs = messages.CheckInRequest(protocol=PROTOCOL), CurrentRuns()
    between = (await runs.check_in("ann", request)).come_back
    runs.begin(AnsweringRun("one", "default", Done(), lambda peer: False))
    after = (await runs.check_in("ann", request)).come_back
    assert not any((between.done, between.finished, after.done, after.finished))


def call(port, method, path, content=None, kind="application/json"):
    body = None if content is None else json.dumps(content).encode()
    url = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(url, body, {"Content-Type": kind}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.skipif(find_browser() is None, reason=MISSING)
async def test_the_page_does_what_operators_ask_for_and_says_what_is_refused(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl")
    with opened_server(tmp_path, lambda settings: None) as server, Browser(find_browser(), tmp_path) as browser:
        server.submit("one", {"not_before": moment(3600)})
        server.submit("two", {})
        shown = ShownRuns(server, None, RunLogs(tmp_path / "logs"), audit)
        listener = OperatorListener(OperatorApplication(shown, CallMetrics()), "127.0.0.1:0")
        await listener.start()
        await asyncio.to_thread(look_and_click, browser, f"http://127.0.0.1:{listener.port}/", server)
        browser.screenshot(tmp_path / "page.png")
        await listener.stop(0)
    assert [run.state for run in server.queue.all()] == [PAUSED, STOPPED]


def look_and_click(browser, url, server):
    def click(row, action):
        browser.run(f"[...document.querySelectorAll('tr')][{row}].querySelectorAll('button')[{action}].click()")

    assert browser.open(url) == ""
    browser.wait("document.querySelectorAll('#runs tr').length === 2", 30)
    assert "queued, not before " in browser.run("document.body.innerText")
    click(1, 0)
    browser.wait("document.body.innerText.includes('paused')", 30)
    browser.run("window.confirm = () => true")
    server.become("two", STOPPED)
    click(2, 0)
    browser.wait("document.getElementById('note').textContent.includes('is stopped, and cannot be paused')", 30)


@pytest.mark.long
async def test_a_run_that_is_paused_lets_the_next_one_pass_and_goes_on_where_it_was(tmp_path, free_port, monkeypatch):
    monkeypatch.setattr(current_runs, "_NO_MORE_SECONDS", 1.0)
    shown = []

    def operators(what, metrics):
        shown.append(OperatorListener(OperatorApplication(what, metrics), "127.0.0.1:0"))
        return shown[0]

    def complete(settings):
        return settings_as_json(compose(Deployment, **settings))

    maker = RunMaker(complete, lambda settings: small.task(compose(Deployment, **settings)))
    rows = []
    endpoints = small.endpoints(None, free_port, operators=operators)
    serving = asyncio.create_task(serve_runs(maker, tmp_path, endpoints, rows.append))
    while not (shown and shown[0].port):
        await asyncio.sleep(0.05)
    ask = functools.partial(asyncio.to_thread, call, shown[0].port)
    for name, rounds in (("one", 40), ("two", 2)):
        await ask("POST", f"/runs/{name}", settings_as_json(small.deployment(rounds=rounds)))
    async with small.running([small.make_client(free_port, tmp_path, number) for number in range(8)]):
        with pytest.raises(urllib.error.HTTPError, match="415"):
            await ask("POST", "/runs/one/stop", None, "text/plain")
        assert '"name": "two"' in await asyncio.to_thread(small.fetch, f"http://127.0.0.1:{shown[0].port}/")
        while len(rows) < 2:
            await asyncio.sleep(0.05)
        await ask("POST", "/runs/one/pause")
        while (await ask("GET", "/runs/two"))["state"] != FINISHED:
            await asyncio.sleep(0.05)
        released = (await ask("GET", "/runs/one"))["released"]
        assert 2 <= released < 40
        await ask("POST", "/runs/one/resume")
        while (await ask("GET", "/runs/one"))["state"] != FINISHED:
            await asyncio.sleep(0.05)
    assert [row["round"] for row in rows] == [*range(released), 0, 1, *range(released, 40)]
    serving.cancel()
