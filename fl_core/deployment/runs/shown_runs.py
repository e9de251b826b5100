"""What operators are shown of a server of several runs, and what they may ask of it."""

import json
import logging
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.deployment.event_log import JsonLines, open_owners_file
from fedlm.fl_core.deployment.operations.overview import database_reached
from fedlm.fl_core.deployment.runs.run_queue import PAUSED, QUEUED, STOPPED, SubmittedRun
from fedlm.fl_core.deployment.runs.run_server import RunServer
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, read_rows
from fedlm.fl_core.runs.identity import SUMMARY_FILE

_ACTIONS = {"pause": PAUSED, "resume": QUEUED, "stop": STOPPED}
_LOG_BYTES = 1 << 16


class ShownRuns:
    """A `Shown` of the process, and its `OperatorCalls`; any thread may ask."""

    page = "runs.html"

    def __init__(self, server: RunServer, database: Database, logs: "RunLogs"):
        self._server, self._database, self._logs = server, database, logs

    @property
    def calls(self) -> "ShownRuns":
        return self

    @property
    def ready(self) -> bool:
        return self._database.reachable and not self._server.draining

    def read(self) -> dict[str, Any]:
        """Tell of all runs.

        Returns:
          JSON-able. `runs`, in their order: `name`, `model`, `state` (one of the queue's), `doing` (what it does while
          it is trained; None while it is not), `rounds`, `released`, `reason` (why it failed), `submitted` (seconds
          since 1970).
        """
        return {"runs": [self._described(run) for run in self._server.queue.all()]}

    def _described(self, run: SubmittedRun) -> dict[str, Any]:
        rows, status = read_rows(self._server.folder(run.name) / METRICS_FILE), self._status(run.name)
        return {
            "name": run.name,
            "model": run.settings["model"],
            "state": run.state,
            "doing": None if status is None else status["run"]["doing"],
            "rounds": run.settings["rounds"],
            "released": max((row["round"] + 1 for row in rows), default=0),
            "reason": run.reason,
            "submitted": run.submitted,
        }

    def _status(self, name: str) -> dict[str, Any] | None:
        held = self._server.held
        return held[1].overview.read() if held is not None and held[0] == name else None

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client.registry.Collector.collect`."""
        held = self._server.held
        return [database_reached(self._database.reachable)] if held is None else held[1].overview.collect()

    def answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, Any] | None:
        """Answer what operators ask of a run: `GET /runs/NAME` tells all of it, and `GET /runs/NAME/log/OFFSET` the
        lines of its log from a byte on; `POST /runs/NAME` submits it, with its settings as the body, and `POST
        /runs/NAME/ACTION` pauses, resumes or stops it."""
        match [method, *path.strip("/").split("/")]:
            case ["GET", "runs", name]:
                return HTTPStatus.OK, self._all_of(self._server.queue.find(name))
            case ["GET", "runs", name, "log", offset] if offset.isdecimal():
                return HTTPStatus.OK, self._logs.read(self._server.queue.find(name).name, int(offset))
            case ["POST", "runs", name]:
                return HTTPStatus.OK, self._described(self._server.submit(name, _settings_in(body)))
            case ["POST", "runs", name, action] if action in _ACTIONS:
                return HTTPStatus.OK, self._described(self._server.become(name, _ACTIONS[action]))
        return None

    def _all_of(self, run: SubmittedRun) -> dict[str, Any]:
        folder = self._server.folder(run.name)
        summary = folder / SUMMARY_FILE
        return self._described(run) | {
            "folder": str(folder),
            "settings": run.settings,
            "status": self._status(run.name),
            "summary": json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else None,
        }


def _settings_in(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise ConfigurationError(f"the settings of a run are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"the settings of a run are a {type(found).__name__}, but must be an object of JSON")
    return found


class RunLogs(logging.Handler):
    """Writes the events of each run to a file of its own, which its owner alone can read."""

    def __init__(self, folder: Path):
        """Name the folder of the files."""
        super().__init__()
        make_folder(folder)
        self._folder = folder
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        name = getattr(record, "fields", {}).get("run")
        if name is None:
            return
        try:
            with open_owners_file(self._path(name)) as file:
                file.write(self.format(record) + "\n")
        except OSError:
            self.handleError(record)

    def read(self, name: str, offset: int) -> dict[str, Any]:
        """Read whole lines of a run from a byte on: `lines`, and the `offset` of what follows."""
        path = self._path(name)
        if not path.exists():
            return {"lines": [], "offset": 0}
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(_LOG_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        return {"lines": [json.loads(line) for line in whole.splitlines()], "offset": offset + len(whole)}

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"
