"""Clients of plans in TypeScript, which have docs/protocol.md and nothing of ours, take part beside those in Python."""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedlm.fedlm_client.errors import ClientError
from fedlm.fedlm_client.files import held_alone
from fedlm.fl_core.deployment.security.keys import Authority
from tests.deployment import small_deployment as small
from tests.deployment import test_plan_clients as beside
from tests.support.browser import MISSING, Browser, find_browser

FOLDER = Path(__file__).parents[2] / "clients/javascript"
COMMAND = ("node", str(FOLDER / "build/src/node/cli.js"), "run")
QUICK = ("--first-backoff", "0.05", "--longest-backoff", "0.5")
ONE = {"cohort_size": 1, "minimum_reports": 1, "over_selection": 1.0}
ACCEPTED = ["round 0: ACCEPTED", "round 1: ACCEPTED"]
pytestmark = pytest.mark.long
keys, tokenizer = beside.keys, beside.tokenizer


@pytest.fixture(scope="module", autouse=True)
def built():
    if shutil.which("node") is None or not (FOLDER / "node_modules").exists():
        pytest.skip("Node, or TypeScript for it, is missing; `npm ci` in clients/javascript installs it")
    # Once for all processes that test together: one would serve what another is about to write.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    (FOLDER / "build").mkdir(exist_ok=True)
    with (FOLDER / "build/tested").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if file.read() != run:
            subprocess.run(["npm", "--silent", "run", "build"], cwd=FOLDER, check=True)
            file.truncate(0)
            file.write(run)


@pytest.fixture
def browser(tmp_path):
    program = find_browser()
    if program is None:
        pytest.skip(MISSING)
    with Browser(program, tmp_path) as browser:
        yield browser


def started(port, folder, number, keys, *words):
    """A client of plans on Node."""
    text = beside.data_of(folder, number)
    who = ["--insecure", "--name", f"client{number}"] if "--credentials" not in words else []
    words = [*who, "--server", f"127.0.0.1:{port}", "--data", text, "--plan-key", keys / "plan.pub", *QUICK, *words]
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], env={"PATH": os.environ["PATH"]}, stderr=subprocess.PIPE, text=True
    )


def test_it_takes_part_with_privacy_beside_clients_in_python(tmp_path, keys, tokenizer):
    private = small.PRIVACY | {"update_norm_bound": "auto", "upload_bits": 32, "min_separation": 1}
    task = beside.task_of(tokenizer, keys, **private, cohort_size=3, minimum_reports=3, over_selection=1.0)
    processes = lambda port: [started(port, tmp_path, 2, keys)]  # noqa: E731
    native = lambda port: [beside.native_client(port, tmp_path, 0)]  # noqa: E731
    made = lambda port: [beside.plan_client(port, tmp_path, 1, keys)[0]]  # noqa: E731
    rows = asyncio.run(beside.take_part(task, tmp_path / "run", native, made, processes))
    assert [row["clients"] for row in rows] == [3, 3]
    # The same noise, the same clients: what is left is how each of them rounds.
    beside.check_final(task, tmp_path / "run", tmp_path / "simulation", 3)
    (found,) = json.loads((tmp_path / "client2.jsonl.participation.json").read_text())["populations"].values()
    assert (list(found["taken"]), found["told"]) == (["0", "1"], [])


async def test_it_is_known_by_its_certificate_and_ends_with_its_part(tmp_path, keys, tokenizer):
    authority = Authority.create(tmp_path / "keys")
    authority.make_server(("127.0.0.1",), 1)
    credentials = authority.make_client("ann", 1)
    private = {**small.PRIVACY, "update_norm_bound": "auto", "rounds": 3, "max_participations": 1, "min_separation": 1}
    task = beside.task_of(tokenizer, keys, **private, **ONE)
    async with small.Server(task, tmp_path / "run", keys=tmp_path / "keys") as server:
        process = started(server.port, tmp_path, 1, keys, "--credentials", credentials)
        _, said = await asyncio.to_thread(process.communicate, timeout=300)
        status, said = process.returncode, said.splitlines()
    assert (status, said[-2:]) == (
        0,
        [f"fedlm-js-client ann: {words}" for words in ("round 0: ACCEPTED", "it has taken part as often as it may")],
    )


def test_one_process_at_a_time_has_a_record_in_either_language_and_a_killed_one_gives_it_back(tmp_path, keys):
    record = tmp_path / "client1.jsonl.participation.json"
    with held_alone(record):
        _, said = started(1, tmp_path, 1, keys).communicate(timeout=60)
        assert f"{record}: another client counts its rounds there now" in said
    process = started(1, tmp_path, 1, keys)
    assert "cannot be reached" in process.stderr.readline()
    with pytest.raises(ClientError, match="another client"), held_alone(record):
        pass
    process.kill()
    process.communicate(timeout=60)
    with held_alone(record):
        pass


def refused(*words):
    """What a client says that ends before it has called anybody."""
    done = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (said,) = done.stderr.splitlines()
    return said


def test_what_its_owner_got_wrong_is_said_in_a_line(tmp_path, keys):
    text = beside.data_of(tmp_path, 1)
    here, elsewhere = ("--server", "127.0.0.1:1"), ("--server", "192.0.2.1:8470")
    plain, usual = ("--insecure", "--name", "ann"), ("--data", text, "--plan-key", keys / "plan.pub")
    assert "on loopback alone" in refused(*elsewhere, *plain, *usual)
    assert "must be HOST:PORT" in refused("--server", "here", *plain, *usual)
    assert "--credentials, or --insecure" in refused(*here, *usual)
    assert "--data is missing" in refused(*here, *plain, "--plan-key", keys / "plan.pub")
    assert "holds no Ed25519 public key" in refused(*here, *plain, "--data", text, "--plan-key", keys / "plan.key")
    assert "--help" in refused(*here, *plain, *usual, "--no-such-option")
    assert "--max-batches is 0" in refused(*here, *plain, *usual, "--max-batches", 0)
    assert "enrol this device again" in refused(*here, *usual, "--credentials", tmp_path)
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "--plan-key" in done.stdout
    assert not done.stderr


FILL = """(async () => {
  const file = (id, name, text) => {
    const given = new DataTransfer(), input = document.getElementById(id);
    given.items.add(new File([text], name));
    input.files = given.files;
    input.dispatchEvent(new Event("change"));
  };
  file("file", "mine.jsonl", DATA);
  file("key", "plan.pub", KEY);
  document.getElementById("first-backoff").value = 0.05;
  document.getElementById("longest-backoff").value = 0.5;
  document.getElementById("name").value = "client1";
})()"""


def filled(data, key):
    return FILL.replace("DATA", json.dumps(data)).replace("KEY", json.dumps(key))


def open_page(browser, port, data, key):
    """Open the page of a server, and give it a file of text and a key."""
    assert browser.open(f"http://127.0.0.1:{port}/") == ""
    browser.wait("document.body?.dataset.state === 'idle'", 60)
    browser.run(filled(data.read_text(), key.read_text()))
    texts = len(data.read_text().splitlines())
    browser.wait(f"document.getElementById('amount').textContent.startsWith('{texts} texts')", 60)
    browser.wait("document.getElementById('key-state').textContent.startsWith('A key is kept')", 60)


def log_of(browser):
    return browser.run("[...document.querySelectorAll('#log li')].map((line) => line.textContent)")


async def test_the_page_takes_part_in_a_browser(tmp_path, keys, tokenizer, browser):
    task = beside.task_of(tokenizer, keys, cohort_size=2, minimum_reports=2, over_selection=1.0)

    def drive(port):
        open_page(browser, port, beside.data_of(tmp_path, 1), keys / "plan.pub")
        # Plain text is spoken where its user said so, and not before.
        browser.run("document.getElementById('start').click()")
        browser.wait("document.querySelector('#log .wrong')?.textContent.includes('plain text')", 60)
        browser.run("document.getElementById('insecure').checked = true; document.getElementById('start').click()")
        browser.wait("document.querySelectorAll('#log li').length > 2", 60)
        over = "[...document.querySelectorAll('#log li')].some((line) => line.textContent.includes('run is over'))"
        browser.wait(over, 300)
        return log_of(browser)

    page = FOLDER / "build/page"
    async with small.Server(task, tmp_path / "run", linger=20, page=page) as server:
        async with small.running([beside.native_client(server.port, tmp_path, 0)]):
            said = await asyncio.to_thread(drive, server.port)
            assert await server.over
        rows, said = server.rows, said
    assert [row["clients"] for row in rows] == [2, 2]
    assert [line.split("  ")[1] for line in said if "ACCEPTED" in line] == ACCEPTED
    beside.check_final(task, tmp_path / "run", tmp_path / "simulation", 2)
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
