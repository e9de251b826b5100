"""The page trains by LiteRT.js, in a thread that has nothing of the browser, and ends what does not fit."""

import asyncio
import json
import re
import shutil

import pytest

from fedlm.fl_core.deployment.server import task as task_of_server
from tests.deployment import small_deployment as small
from tests.deployment import test_javascript_client as page
from tests.deployment import test_plan_clients as beside
from tests.support import hostile_models

ENDED = "!!document.querySelector('#log .wrong') || /run is over/.test(document.getElementById('log').textContent)"
# The objects and functions that a thread has names for, its own or those of its kind, and that are not in a list.
LEFT = """(() => {
    const left = new Set(), kept = new Set(%s);
    for (let one = globalThis; one && one !== Object.prototype; one = Object.getPrototypeOf(one))
        for (const name of Object.getOwnPropertyNames(one))
            if (!kept.has(name) && Object(globalThis[name]) === globalThis[name]) left.add(name);
    return [...left].sort();
})()"""
pytestmark = pytest.mark.long
keys, tokenizer, built, browser = beside.keys, beside.tokenizer, page.built, page.browser


def log_of_page(task, folder, browser, keys, ended=ENDED, meanwhile=lambda: None, built=None):
    """What the page says of a run that it takes part in by itself, until that has ended."""

    def drive(port):
        page.open_page(browser, port, beside.data_of(folder, 0), keys / "plan.pub")
        browser.run("document.getElementById('insecure').checked = true; document.getElementById('start').click()")
        browser.wait(ended, 60)
        meanwhile()
        return [line.split("  ", 1)[1] for line in page.log_of(browser)]

    async def run():
        files = built or page.FOLDER / "build/page"
        async with small.Server(task, folder / "run", linger=3, page=files) as server:
            return await asyncio.to_thread(drive, server.port)

    return asyncio.run(run())


def test_the_thread_of_models_has_nothing_of_the_browser(tmp_path, keys, tokenizer, browser):
    source = (page.FOLDER / "src/confinement.ts").read_text()
    kept = sorted({name for words in re.findall(r'"([A-Z][\w ]+)"\.split', source) for name in words.split()})
    assert "Promise" in kept
    assert not {"indexedDB", "fetch", "navigator", "EventSource", "cookieStore", "process", "Buffer"} & {*kept}
    found, script = {}, LEFT % json.dumps(kept)
    trained = "document.getElementById('log').textContent.includes('round 0: ACCEPTED')"
    task = beside.task_of(tokenizer, keys, **page.ONE, rounds=1000)
    meanwhile = lambda: found.update(browser.run_in_workers(script))  # noqa: E731
    log_of_page(task, tmp_path, browser, keys, ended=trained, meanwhile=meanwhile)
    assert found == {"litert.js": []}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no archive", "litert.wasm.gz of this page cannot be unpacked ("),
        (None, "this page has no LiteRT.js beside it;"),
    ],
)
def test_a_runtime_that_never_comes_is_not_asked_for_again_and_again(tmp_path, keys, tokenizer, browser, content, why):
    shutil.copytree(page.FOLDER / "build/page", tmp_path / "page")
    (tmp_path / "page/litert.wasm.gz").unlink()
    if content is not None:
        (tmp_path / "page/litert.wasm.gz").write_bytes(content)
    task = beside.task_of(tokenizer, keys, **page.ONE)
    said = log_of_page(task, tmp_path, browser, keys, built=tmp_path / "page")
    assert why in said[2]
    assert len(said) == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (b"TFL3" * 1000, "does not run (Error: Failed to load model"),
        (hostile_models.failing, "the plan's model does not run (ERROR: "),
        (hostile_models.too_large, "needs more memory than it may have"),
        (hostile_models.without_end, "took more than 3 seconds, and was ended"),
    ],
    ids=["garbage", "failing", "too large", "without end"],
)
def test_a_model_that_does_not_fit_its_plan_ends_it(tmp_path, keys, tokenizer, browser, monkeypatch, change, why):
    make = task_of_server.make_plan
    monkeypatch.setattr(
        task_of_server, "make_plan", lambda source: hostile_models.hostile(make(source), change, call_seconds=3.0)
    )
    said = log_of_page(beside.task_of(tokenizer, keys, **page.ONE), tmp_path, browser, keys)
    assert why in said[2]
    assert len(said) == 3
