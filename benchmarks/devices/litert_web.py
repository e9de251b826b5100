"""A round of a plan in headless Chromium, by both threads of the page for browsers: `train_in_browser`.

`npm ci && npm run build` in clients/javascript makes the page, and `make litert` the environment that makes the model
of one of them.
"""

import http.server
import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.support.browser import MISSING, Browser, find_browser

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "clients/javascript/build/page"
PACKAGE = ROOT / "clients/javascript/node_modules/@litertjs/core/package.json"
PYTHON = ROOT / ".venv-litert/bin/python"
_EXPORT = """
import json, sys
from pathlib import Path
from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.deployment.plans.litert.model import make_litert_plan
from fedlm.fl_core.deployment.plans.plan import PlanSource
from fedlm.fl_core.settings import TrainingSettings
folder, model, vocabulary, settings = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
plan = make_litert_plan(PlanSource(model, b"{}", vocabulary, compose(TrainingSettings, **settings)))
(folder / "model.tflite").write_bytes(plan.model)
"""


def missing() -> str:
    """Name what LiteRT.js needs here and has not got; nothing where all is there."""
    if not PYTHON.exists():
        return "ai-edge-litert is not installed; `make litert` makes an environment with it"
    if not (PAGE / "litert.js").exists():
        return "the page for browsers is missing; `npm ci && npm run build` in clients/javascript makes it"
    return "" if find_browser() else MISSING


def export_model(folder: Path, model: str, vocabulary: int, settings: dict[str, Any]) -> None:
    """Write model.tflite of a model and how clients train it into a folder."""
    words = [PYTHON, "-c", _EXPORT, folder, model, str(vocabulary), json.dumps(settings)]
    subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)


def train_in_browser(folder: Path, stream: tuple[int, int, int]) -> dict[str, Any]:
    """Train on a folder's tokens.i32 from its values.f32, by LiteRT.js and by the interpreter, which take each step one
    after the other, and write litert_web.update and interpreter_web.update beside them.

    Args:
      folder: with a plan and model.tflite too.
      stream: seed, number of the round and index of the client, that the upload is made with.

    Returns:
      Seconds until it trains, milliseconds of a step, and versions, of each under the name of its update.
    """
    program = find_browser()
    assert program is not None, missing()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, Browser(program, Path(place)) as browser:
            assert browser.open(f"http://127.0.0.1:{server.server_port}/") == ""
            browser.wait("document.body?.dataset.ready", 60)
            found = browser.run(f"train({json.dumps(stream)})")
            version = browser.run("navigator.userAgent").split("Chrome/")[1].split()[0]
    finally:
        server.shutdown()
        server.server_close()
    versions = {"chromium": version, "@litertjs/core": json.loads(PACKAGE.read_text())["version"]}
    return {name: one | {"versions": versions} for name, one in found.items()}


def _handler(folder: Path) -> type[http.server.SimpleHTTPRequestHandler]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            if path == "/":
                return str(Path(__file__).with_name("litert_page.html"))
            kind, _, name = path.removeprefix("/").partition("/")
            return str({"page": PAGE}.get(kind, folder) / name)

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            (folder / Path(self.path).name).write_bytes(content)
            self.send_response(http.HTTPStatus.NO_CONTENT)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    return Handler
