"""The page in a browser trains by LiteRT.js with a model that the server has, where its user accepts such."""

import asyncio
import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from fedlm.fl_core.deployment.plans.plan_modules import ModuleFolder
from tests.deployment import small_deployment as small
from tests.deployment import test_javascript_client as page
from tests.deployment import test_plan_clients as beside

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-litert/bin/python"
ACCEPT = "document.getElementById('litert').checked = true; document.getElementById('insecure').checked = true"
pytestmark = pytest.mark.long
keys, tokenizer, built, browser = beside.keys, beside.tokenizer, page.built, page.browser


def task_of(tokenizer, keys, modules=None, **changes):
    task = beside.task_of(tokenizer, keys, model="cifg_tiny", **page.ONE, **changes)
    return task if modules is None else dataclasses.replace(task, plan_modules=ModuleFolder(modules))


def export(folder, task, keys, small_store, *words):
    """What an operator does who has the server's settings and the package for LiteRT."""
    if not PYTHON.exists():
        pytest.skip("ai-edge-litert is not installed; `make litert` makes an environment with it")
    names = ("model", "length", "client_batch_size", "client_max_batches", "upload_bits")
    settings = {**small.SETTINGS, **beside.SETTINGS, "model": "cifg_tiny"}
    path = folder / "serve.toml"
    path.write_text("".join(f"{name} = {json.dumps(settings[name])}\n" for name in names))
    given = ["--vocabulary", small_store / "tokenizer.json", "--keys", keys, "--format", "litert", *words]
    command = [PYTHON, "-m", "fedlm", "plan", "export", path, "--out", folder / "modules/litert", *given]
    subprocess.run(list(map(str, command)), env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=300)
    return folder / "modules"


def train(task, out, browser, data, key, script=ACCEPT):
    """Have the page take part to the end of a run; gives its log."""

    def drive(port):
        assert browser.open(f"http://127.0.0.1:{port}/") == ""
        browser.wait("document.body?.dataset.state === 'idle'", 60)
        browser.run(page.filled(data, key))
        browser.wait("document.getElementById('amount').textContent.startsWith('3 texts')", 60)
        browser.wait("document.getElementById('key-state').textContent.startsWith('A key is kept')", 60)
        browser.run(script + "; document.getElementById('start').click()")
        browser.wait("document.querySelectorAll('#log li').length > 0", 60)
        browser.wait("document.body.dataset.state === 'idle'", 300)
        return [line.split("  ", 1)[1] for line in page.log_of(browser)]

    async def run():
        async with small.Server(task, out, transport="http", linger=20, page=page.FOLDER / "build/page") as server:
            return await asyncio.to_thread(drive, server.port)

    return asyncio.run(run())


def test_it_trains_with_a_model_of_the_server(tmp_path, keys, tokenizer, small_store, browser):
    modules = export(tmp_path, None, keys, small_store)
    task = task_of(tokenizer, keys, modules)
    data, key = beside.data_of(tmp_path, 0).read_text(), (keys / "plan.pub").read_text()
    said = train(task, tmp_path / "run", browser, data, key)
    print("\n".join(said))
    browser.screenshot(tmp_path / "page.png")
    beside.check_final(task, tmp_path / "run", tmp_path / "simulation", 1)
    assert "it runs the server's model by LiteRT.js" in said
