"""The page in a browser trains by LiteRT.js with a model that the server has, where its user accepts such."""

import asyncio
import dataclasses
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedlm.fl_core.deployment.plans import plan as plans
from fedlm.fl_core.deployment.plans.plan_modules import ModuleFolder
from fedlm.fl_core.deployment.plans.programs import versions
from tests.deployment import small_deployment as small
from tests.deployment import test_javascript_client as page
from tests.deployment import test_plan_clients as beside

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-litert/bin/python"
SETTINGS = {**small.SETTINGS, **beside.SETTINGS, "model": "cifg_tiny"}
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


def in_its_environment(*words):
    """Run a script of ours where LiteRT's package is."""
    if not PYTHON.exists():
        pytest.skip("ai-edge-litert is not installed; `make litert` makes an environment with it")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([PYTHON, *map(str, words)], env=environment, check=True, timeout=300)


@pytest.fixture(scope="module")
def modules(tmp_path_factory, keys, small_store):
    """What an operator gives the server, who has its settings and the package for LiteRT."""
    folder = tmp_path_factory.mktemp("operator")
    names = ("model", "length", "client_batch_size", "client_max_batches", "upload_bits")
    (folder / "serve.toml").write_text("".join(f"{name} = {json.dumps(SETTINGS[name])}\n" for name in names))
    given = ["--vocabulary", small_store / "tokenizer.json", "--keys", keys, "--format", "litert"]
    export = ["plan", "export", folder / "serve.toml", "--out", folder / "modules/litert", *given]
    in_its_environment("-m", "fedlm", *export)
    return folder / "modules"


def task_of(tokenizer, keys, modules, **changes):
    task = beside.task_of(tokenizer, keys, model=SETTINGS["model"], **page.ONE, **changes)
    return dataclasses.replace(task, plan_modules=ModuleFolder(modules))


def log_of_page(task, folder, browser, keys, accepts=True, ended=ENDED, meanwhile=lambda: None, built=None):
    """What the page says of a run that it takes part in by itself, until that has ended."""
    data, key = beside.data_of(folder, 0).read_text(), (keys / "plan.pub").read_text()

    def drive(port):
        assert browser.open(f"http://127.0.0.1:{port}/") == ""
        browser.wait("document.body?.dataset.state === 'idle'", 60)
        browser.run(page.filled(data, key))
        browser.wait("document.getElementById('amount').textContent.startsWith('3 texts')", 60)
        browser.wait("document.getElementById('key-state').textContent.startsWith('A key is kept')", 60)
        browser.run(f"document.getElementById('litert').checked = {json.dumps(accepts)}")
        browser.run("document.getElementById('insecure').checked = true; document.getElementById('start').click()")
        browser.wait(ended, 60)
        meanwhile()
        return [line.split("  ", 1)[1] for line in page.log_of(browser)]

    async def run():
        files = built or page.FOLDER / "build/page"
        async with small.Server(task, folder / "run", linger=3, page=files) as server:
            return await asyncio.to_thread(drive, server.port)

    return asyncio.run(run())


def test_it_trains_with_a_model_of_the_server(tmp_path, keys, tokenizer, modules, browser):
    task = task_of(tokenizer, keys, modules)
    said = log_of_page(task, tmp_path, browser, keys)
    assert said[2:] == ["it runs the server's model by LiteRT.js", *page.ACCEPTED, "the run is over"]
    beside.check_final(task, tmp_path / "run", tmp_path / "simulation", 1)
    browser.screenshot(tmp_path / "page.png")


def test_the_thread_of_models_has_nothing_of_the_browser(tmp_path, keys, tokenizer, modules, browser):
    source = (page.FOLDER / "src/web/litert_worker.ts").read_text()
    kept = sorted({name for words in re.findall(r'"([A-Z][\w ]+)"\.split', source) for name in words.split()})
    assert "Promise" in kept
    assert not {"indexedDB", "fetch", "navigator", "EventSource", "cookieStore"} & {*kept}
    found, script = {}, LEFT % json.dumps(kept)
    trained = "document.getElementById('log').textContent.includes('round 0: ACCEPTED')"
    task = task_of(tokenizer, keys, modules, rounds=1000)
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
def test_a_runtime_that_never_comes_is_not_asked_for_again_and_again(
    tmp_path, keys, tokenizer, modules, browser, content, why
):
    shutil.copytree(page.FOLDER / "build/page", tmp_path / "page")
    (tmp_path / "page/litert.wasm.gz").unlink()
    if content is not None:
        (tmp_path / "page/litert.wasm.gz").write_bytes(content)
    said = log_of_page(task_of(tokenizer, keys, modules), tmp_path, browser, keys, built=tmp_path / "page")
    assert said[2] == "it runs the server's model by LiteRT.js"
    assert why in said[3]
    assert len(said) == 4


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("not accepted", "models of LiteRT are not accepted from the server"),
        ("16 bits", "LiteRT.js knows no uint16, which its upload has"),
        ("no model", "the server has no model of it for LiteRT"),
    ],
)
def test_it_interprets_otherwise(tmp_path, keys, tokenizer, browser, modules, change, why):
    (tmp_path / "modules").mkdir()
    bits = {"upload_bits": 16} if change == "16 bits" else {}
    task = task_of(tokenizer, keys, tmp_path / "modules" if change == "no model" else modules, **bits)
    said = log_of_page(task, tmp_path, browser, keys, change != "not accepted")
    assert said[2:] == [f"it is interpreted, since {why}", *page.ACCEPTED, "the run is over"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, keys, tokenizer, modules):
    """Folders of signed models by what is wrong with them; of a plan whose calls may take 3 seconds."""
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "_CALL_SECONDS", 3)
        digests = [task_of(tokenizer, keys, modules).plan(version).digest for version in versions()]
        in_its_environment(Path(__file__).with_name("hostile_litert.py"), modules / "litert", keys, folder, *digests)
        yield folder


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("garbage", "does not run (Error: Failed to load model"),
        ("cut", "does not run (Error: Failed to load model"),
        ("without_a_signature", "the server's model lacks one of the signatures train and finish"),
        ("without_a_tensor", "as no tensor, but its plan as float32[]"),
        ("of_another_shape", "the server's model takes state/embedding/table as float32["),
        ("failing", "the server's model does not run (ERROR: "),
        ("too_large", "needs more memory than it may have"),
        ("without_end", "took more than 3 seconds, and was ended"),
    ],
)
def test_a_model_that_does_not_fit_its_plan_ends_it(tmp_path, keys, tokenizer, browser, hostile, name, why):
    said = log_of_page(task_of(tokenizer, keys, hostile / name), tmp_path, browser, keys)
    assert said[2] == "it runs the server's model by LiteRT.js"
    assert why in said[3]
    assert len(said) == 4
