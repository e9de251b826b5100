"""What operators see of a server: its page in a real browser, its JSON, its metrics, and nothing of any client's."""

import asyncio
import dataclasses
import json
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from fedlm.commands.cli import main as fedlm
from fedlm.fl_core.deployment.operations.call_metrics import CallMetrics
from fedlm.fl_core.deployment.operations.certificate_days import CertificateDays
from fedlm.fl_core.deployment.operations.listener import OperatorApplication, OperatorListener
from fedlm.fl_core.deployment.operations.overview import curves
from fedlm.fl_core.deployment.security.credentials import reloading_tls
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.security.operator_access import OPERATOR_TOKEN_FILE, OperatorAccess, write_operator_token
from tests.deployment import small_deployment as small
from tests.support.browser import Browser, find_browser
from tests.support.serving import refusing_at_once

MONITORING = Path(__file__).parents[2] / "deploy/monitoring"
CHROMIUM = find_browser()


class Operated(small.Server):
    """A server that operators look at."""

    def operators(self, overview, metrics):
        metrics.registry.register(CertificateDays(keys_of(self.out)))
        self.shown = OperatorListener(OperatorApplication(overview, metrics), "127.0.0.1:0")
        return self.shown

    @property
    def url(self):
        return f"http://127.0.0.1:{self.shown.port}"

    def get(self, path):
        return asyncio.to_thread(small.fetch, self.url + path)


def keys_of(folder):
    """A folder of a server's keys."""
    Authority.create(folder / "keys", 20).make_server(("127.0.0.1",), 10)
    return folder / "keys"


def all_clients(server, folder):
    return [small.make_client(server.port, folder, one) for one in range(server.what.deployment.cohort_size)]


@pytest.mark.long
async def test_the_status_counts_what_happened(tmp_path, capsys):
    privacy = small.PRIVACY | {"noise_seed": "entropy", "min_separation": 1, "max_participations": 3}
    task = small.task(small.deployment(rounds=3, evaluate_every=1, **privacy))
    scores = {"heldout_loss": 3.25, "heldout_accuracy": 0.125}
    server = Operated(dataclasses.replace(task, score=lambda params: scores), tmp_path / "run")
    async with asyncio.timeout(small.PATIENCE), server:
        async with small.running(all_clients(server, tmp_path)):
            while len(server.rows) < 2:
                await asyncio.sleep(0.05)
        # The third round waits for clients that are away.
        words = ["status", "--server", server.url.removeprefix("http://")]
        assert await asyncio.to_thread(fedlm, words) == 0
        if CHROMIUM is not None:
            check_page(*await asyncio.to_thread(browse, server.url + "/", tmp_path))
        status, metrics, page = [await server.get(path) for path in ("/status.json", "/metrics", "/")]
        status = json.loads(status)
        async with small.running(all_clients(server, tmp_path)):
            assert await server.over
    shown = capsys.readouterr().out
    for words in ("of 3 rounds done", "8 checked in within a day", "waits for 8 reports", "the plan allows 3"):
        assert words in shown
    assert status["run"]["released"] >= 2
    assert status["run"]["rounds"] == 3
    first = status["attempts"][0]
    assert (first["outcome"], first["selected"], first["reported"]) == ("finished", 8, 8)
    assert status["totals"]["reported"] == sum(one["reported"] for one in status["attempts"])
    assert status["totals"]["bytes_up"] == sum(one["bytes_up"] for one in status["attempts"]) > 0
    assert status["clients"] == {"known": 8, "within_a_day": 8}
    found = status["round"]
    assert found["goal"] == 8
    assert 8 >= found["checked_in"] >= found["selected"] >= found["reported"] + found["dropped"]
    assert found["working"] == found["selected"] - found["reported"] - found["dropped"]
    assert status["curves"]["heldout_accuracy"][0] == [1, 0.125]
    assert status["participation"]["planned"] == {"max_participations": 3, "min_separation": 1}
    assert status["participation"]["realised"]["clients"] == 8
    assert status["participation"]["realised"]["max_participations"] >= 2
    assert status["participation"]["realised"]["min_separation"] == 1
    spent = status["privacy"]
    assert spent["private"]
    assert 0 < spent["epsilon_spent"] <= spent["epsilon_budget"]
    assert (spent["delta"], spent["rounds_planned"]) == (1e-3, 3)
    assert "client" in spent["unit"]
    assert "zero-out" in spent["adjacency"]
    assert "VOCABULARY NOT COVERED: it was given" in spent["statement"]
    check_metrics(metrics, status)
    for text in (json.dumps(status), metrics, page):
        assert "client0" not in text
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|https?://(?!www\.w3\.org)", page)


def check_metrics(text, status):
    """Check what Prometheus would read, and that what alerts and the dashboard watch is there."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type != "unknown" for family in families)
    values = {selector(one.name, one.labels): one.value for family in families for one in family.samples}
    assert values['fedlm_check_ins_total{answer="selected"}'] >= 16
    assert values['fedlm_reports_total{answer="accepted"}'] >= 16
    assert values['fedlm_attempts_total{outcome="finished"}'] >= 2
    assert values['fedlm_transferred_bytes_total{way="up"}'] >= status["totals"]["bytes_up"]
    assert values["fedlm_heldout_accuracy"] == 0.125
    (epsilon,) = [family for family in families if family.name == "fedlm_epsilon"]
    privacy = status["privacy"]
    assert f"delta {privacy['delta']:g}; unit {privacy['unit']}; adjacency {privacy['adjacency']}" in (
        epsilon.documentation
    )
    assert values['fedlm_epsilon{of="spent"}'] == pytest.approx(status["privacy"]["epsilon_spent"])
    assert values["fedlm_check_in_seconds_count"] >= 16
    assert values["process_resident_memory_bytes"] > 1e6
    assert values['fedlm_certificate_days{of="server"}'] == pytest.approx(10, abs=0.1)
    assert values['fedlm_certificate_days{of="authority"}'] == pytest.approx(20, abs=0.1)
    watched = {name for path in sorted(MONITORING.iterdir()) for name in re.findall(r"\bfedlm_\w+", path.read_text())}
    assert len(watched) >= 15
    # Servers of several runs alone promise something to a population.
    watched.discard("fedlm_population_epsilon")
    assert watched <= {one.name for family in families for one in family.samples}


def selector(name, labels):
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name


def check_page(dom, picture):
    """Check what a browser shows after the script of the page has run."""
    text = re.sub(r"<script.*?</script>|<style.*?</style>", "", dom, flags=re.DOTALL)
    for words in (" of 3 rounds done", "VOCABULARY NOT COVERED", "checked in", "12.5 %", "3.25"):
        assert words in text
    assert len(re.findall("<polyline", text)) == 3
    colours = {colour for _, colour in Image.open(picture).convert("RGB").getcolors(1 << 24)}
    # Bars and curves are drawn, not only words: the blue, the orange and the green of the page.
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73)} <= colours


def browse(url, folder):
    """Load a page; returns its elements after its script has run, and a picture."""
    with Browser(CHROMIUM, folder) as browser:
        assert browser.open(url) == ""
        browser.wait("document.querySelectorAll('polyline').length === 3", 60)
        browser.screenshot(folder / "page.png")
        dom = browser.run("document.body.innerHTML")
        assert browser.run("showPrivacy(null); document.getElementById('promise').textContent") == "NOT PRIVATE"
        return dom, folder / "page.png"


class MadeUp:
    """An overview of nothing."""

    page, calls, ready = "status.html", None, True

    def read(self):
        return dict(STATUS)

    def collect(self):
        return []


def listening(act, access=None, tls=None):
    """Serve a made-up status, and give its address to a function in another thread."""

    async def run():
        application = OperatorApplication(MadeUp(), CallMetrics(), access)
        listener = OperatorListener(application, "127.0.0.1:0", tls)
        with refusing_at_once():
            await listener.start()
            try:
                return await asyncio.to_thread(act, f"127.0.0.1:{listener.port}")
            finally:
                await listener.stop(0)

    return asyncio.run(run())


STATUS = {
    "run": {"model": "</script><b>", "rounds": 3, "released": 1, "doing": "collecting"},
    "clients": {"within_a_day": 1, "known": 1},
    "round": None,
    "curves": {},
    "totals": dict.fromkeys(("finished", "abandoned", "reported", "selected", "bytes_down", "bytes_up"), 0),
    "privacy": None,
    "participation": {
        "planned": {"max_participations": 3, "min_separation": 1},
        "realised": {"max_participations": 1, "min_separation": None},
    },
}


def refused(url, data=None, headers=None, tls=None):
    """The status of an answer that is no success."""
    request = urllib.request.Request(url, data, headers or {})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60, context=tls)
    with caught.value as answer:
        assert b"</script>" not in answer.read()
        return answer.code


def test_other_requests_are_refused_and_the_status_cannot_end_its_script():
    def act(address):
        paths = (("/nothing", None), ("/status.json", b"posted"), ("/metrics", b"posted"))
        return [refused(f"http://{address}{path}", data) for path, data in paths], small.fetch(f"http://{address}/")

    answers, page = listening(act)
    assert answers == [404, 405, 405]
    assert "</script><b>" not in page
    assert "\\u003c/script>\\u003cb>" in page


def test_no_other_site_puts_the_page_into_a_frame():
    def act(address):
        with urllib.request.urlopen(f"http://{address}/", timeout=60) as answer:
            return answer.headers["Content-Security-Policy"].split("; ")

    policy = listening(act)
    assert {"default-src 'none'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"} <= set(policy)


def test_with_keys_operators_need_the_token_and_the_authority(tmp_path, capsys):
    keys, elsewhere = tmp_path / "keys", tmp_path / "elsewhere"
    for folder in (keys, elsewhere):
        Authority.create(folder, 2)
        Authority(folder).make_server(("127.0.0.1",), 2)
        write_operator_token(folder / OPERATOR_TOKEN_FILE)
    access = OperatorAccess(keys / OPERATOR_TOKEN_FILE)
    trust = ssl.create_default_context(cafile=keys / "ca.pem")

    def act(address):
        for path in ("/", "/status.json", "/metrics", "/nothing"):
            assert refused(f"https://{address}{path}", tls=trust) == 401
            wrong = {"Authorization": "Bearer " + OperatorAccess(elsewhere / OPERATOR_TOKEN_FILE).token()}
            assert refused(f"https://{address}{path}", headers=wrong, tls=trust) == 401
        for path in ("/healthz", "/readyz"):
            with urllib.request.urlopen(f"https://{address}{path}", timeout=60, context=trust) as answer:
                assert answer.read() == b"ok\n"
            assert refused(f"https://{address}{path}", data=b"posted", tls=trust) == 401
        with socket.create_connection(address.split(":")):
            # A connection that says nothing keeps nobody else waiting.
            shown = fedlm(["status", "--server", address, "--keys", str(keys)])
        return shown, fedlm(["status", "--server", address, "--keys", str(elsewhere)])

    assert listening(act, access, reloading_tls(keys)) == (0, 2)
    found = capsys.readouterr()
    assert "1 of 3 rounds done" in found.out
    assert "NOT PRIVATE" in found.out
    assert "CERTIFICATE_VERIFY_FAILED" in found.err


def test_probes_are_answered_while_a_database_keeps_every_thread_waiting(monkeypatch):
    answers = threading.Event()

    def read(self):
        answers.wait(120)
        return dict(STATUS)

    monkeypatch.setattr(MadeUp, "read", read)

    def act(address):
        pages = [threading.Thread(target=small.fetch, args=(f"http://{address}/status.json",)) for _ in range(5)]
        for page in pages:
            page.start()
        probes = []
        try:
            for path in ("/healthz", "/readyz"):
                with urllib.request.urlopen(f"http://{address}{path}", timeout=1) as answer:
                    probes.append(answer.read())
        finally:
            answers.set()
            for page in pages:
                page.join()
        return probes

    assert listening(act) == [b"ok\n", b"ok\n"]


def test_curves_are_thinned_and_end_where_the_run_does():
    rows = [{"round": number, "train_loss": 1.0 / (1 + number)} for number in range(3001)]
    found = curves(rows)
    assert list(found) == ["train_loss"]
    assert len(found["train_loss"]) <= 400
    assert found["train_loss"][-1] == [3001, 1.0 / 3001]
    assert curves([]) == {}
