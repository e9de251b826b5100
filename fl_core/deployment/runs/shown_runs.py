"""What operators are shown of a server of several runs, and what they may ask of it."""

import contextlib
import json
import logging
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from fedlm.fl_core.atomic_files import make_folder
from fedlm.fl_core.deployment.event_log import JsonLines, open_owners_file
from fedlm.fl_core.deployment.operations.operator_calls import Call, FoundCall
from fedlm.fl_core.deployment.operations.overview import database_reached
from fedlm.fl_core.deployment.runs.run_queue import PAUSED, QUEUED, STOPPED, SubmittedRun
from fedlm.fl_core.deployment.runs.run_server import RunServer
from fedlm.fl_core.deployment.security.audit_log import AuditLog
from fedlm.fl_core.deployment.security.keys import shut_out
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state import StateError
from fedlm.fl_core.errors import ConfigurationError, UserError, setting
from fedlm.fl_core.runs.files.metrics_log import METRICS_FILE, read_rows
from fedlm.fl_core.runs.identity import SUMMARY_FILE

_ACTIONS = {"pause": (Call.PAUSE, PAUSED), "resume": (Call.RESUME, QUEUED), "stop": (Call.STOP, STOPPED)}
_LOG_BYTES, _OFFSET_DIGITS = 1 << 16, 18
_JSON_KINDS = {type(None): "null", bool: "true or false", str: "a string", list: "an array"}


class ShownRuns:
    """A `Shown` of the process, and its `OperatorCalls`; any thread may ask."""

    page = "runs.html"

    def __init__(self, server: RunServer, database: Database, logs: "RunLogs", audit: AuditLog):
        self._server, self._database, self._logs, self.audit = server, database, logs, audit
        self._released: dict[str, tuple[int, int]] = {}  # by run: bytes of its metrics, and released rounds in them

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
          it is trained; None while it is not), `rounds`, `released`, `reason` (why it failed, or cannot be read),
          `submitted` (seconds since 1970), `not_before` (as many, where it waits for that moment; else None),
          `population` (whose devices train it), `first_round` (its number among the rounds of all its population's
          runs; None of runs that are NOT PRIVATE), `round` (its open attempt, with its funnel; None while it is not
          trained). `populations`: what is promised to each, see `Population.read`; none where runs are NOT PRIVATE.
        """
        runs = self._server.queue.all()
        return {
            "runs": [self._described(run, self._status(run.name)) for run in runs],
            "populations": self._server.populations.read(runs),
        }

    def _described(self, run: SubmittedRun, status: dict[str, Any] | None) -> dict[str, Any]:
        released, reason = 0, run.reason
        try:
            released = self._released_rounds(run.name)
        except UserError as error:
            # One damaged file hides no other run.
            reason = reason or error.for_command_line()
        return {
            "name": run.name,
            "population": run.population,
            "model": run.settings["model"],
            "state": run.state,
            "doing": None if status is None else status["run"]["doing"],
            "rounds": run.settings["rounds"],
            "released": released,
            "reason": reason,
            "submitted": run.submitted,
            "not_before": run.begins if run.state == QUEUED and run.begins > time.time() else None,
            "first_round": run.first_round,
            "round": None if status is None else status["round"],
        }

    def _released_rounds(self, name: str) -> int:
        path = self._server.folder(name) / METRICS_FILE
        size = path.stat().st_size if path.exists() else 0
        known = self._released.get(name)
        if known is None or known[0] != size:
            known = size, max((row["round"] + 1 for row in read_rows(path, "round")), default=0)
            self._released[name] = known
        return known[1]

    def _status(self, name: str) -> dict[str, Any] | None:
        held = self._server.held.get(name)
        return None if held is None else held.overview.read()

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client.registry.Collector.collect`."""
        held = dict(self._server.held)
        if not held:
            yield database_reached(self._database.reachable)
        found = dict[str, Metric]()
        for name, run in held.items():
            # Counts of one run are not those of the next.
            labels = {"run": name, "population": run.population}
            for metric in run.overview.collect():
                one = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                one.samples += [sample._replace(labels=sample.labels | labels) for sample in metric.samples]
        yield from found.values()
        if self._server.populations.all:
            with contextlib.suppress(StateError):
                yield _epsilon_of(self._server.populations.read(self._server.queue.all()))

    def find(self, method: str, path: str) -> FoundCall | None:
        """Find what is asked: `GET /runs/NAME` tells all of a run, and `GET /runs/NAME/log/OFFSET` the lines of its log
        from a byte on; `POST /runs/NAME` submits it, with its settings as the body, and `POST /runs/NAME/ACTION`
        pauses, resumes, stops or approves it; `GET /audit/OFFSET` gives lines of the audit log from a byte
        on; `POST /clients/NAME/revoke` shuts out a client."""
        server = self._server
        match [method, *path.strip("/").split("/")]:
            case ["GET", "runs", name]:
                return FoundCall(Call.SHOW_RUN, name, lambda *_: self._all_of(server.queue.find(name)))
            case ["GET", "runs", name, "log", offset] if _is_offset(offset):
                return FoundCall(
                    Call.SHOW_LOG, name, lambda *_: self._logs.read(server.queue.find(name).name, int(offset))
                )
            case ["POST", "runs", name]:
                return FoundCall(
                    Call.SUBMIT,
                    name,
                    lambda by, body: self._acted_on(server.submit(name, _settings_in(body), by.name)),
                )
            case ["POST", "runs", name, "approve"]:
                return FoundCall(Call.APPROVE, name, lambda by, _: self._acted_on(server.approve(name, by.name)))
            case ["POST", "runs", name, action] if action in _ACTIONS:
                call, state = _ACTIONS[action]
                return FoundCall(call, name, lambda *_: self._acted_on(server.become(name, state)))
            case ["POST", "clients", name, "revoke"]:
                return FoundCall(Call.REVOKE, name, lambda *_: self._shut_out(name))
            case ["GET", "audit", offset] if _is_offset(offset):
                return FoundCall(Call.READ_AUDIT, offset, lambda *_: self.audit.read(int(offset)))
        return None

    def _shut_out(self, name: str) -> dict[str, Any]:
        if (keys := self._server.rules.keys) is None:
            raise ConfigurationError(f"the server has no {setting('keys')}, so that no client can be revoked")
        shut_out(keys, name)
        return {"revoked": name}

    def _acted_on(self, run: SubmittedRun) -> dict[str, Any]:
        return self._described(run, self._status(run.name))

    def _all_of(self, run: SubmittedRun) -> dict[str, Any]:
        folder, status = self._server.folder(run.name), self._status(run.name)
        return self._described(run, status) | {
            "folder": str(folder.absolute()),
            "submitted_by": run.submitted_by,
            "approved_by": run.approved_by,
            "settings": run.settings,
            "status": status,
            "summary": _read_summary(folder / SUMMARY_FILE),
        }


def _epsilon_of(populations: list[dict[str, Any]]) -> Metric:
    words = "Privacy loss that all runs of a population together have reserved, and may spend."
    epsilon = GaugeMetricFamily("fedlm_population_epsilon", words, labels=["population", "of"])
    for population in populations:
        for of, name in (("reserved", "epsilon_reserved"), ("budget", "epsilon_budget")):
            epsilon.add_metric([population["name"], of], math.inf if population[name] is None else population[name])
    return epsilon


def _read_summary(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except ValueError as error:
        raise ConfigurationError(f"{path}: not a summary of ours ({error}); remove it") from error


def _settings_in(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the settings of a run are not JSON: {error}") from error
    if not isinstance(found, dict):
        kind = _JSON_KINDS.get(type(found), "a number")
        raise ConfigurationError(f"the settings of a run are {kind} in JSON, but must be an object")
    return found


def _is_offset(text: str) -> bool:
    return text.isdecimal() and len(text) <= _OFFSET_DIGITS


def _read_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


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
        """Read whole lines of a run from a byte on: `lines`, and the `offset` of what follows, which is as it was at
        the end. What a killed process left unfinished is passed over."""
        path = self._path(name)
        if not path.exists():
            return {"lines": [], "offset": offset}
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(_LOG_BYTES)
            if b"\n" not in content:
                content += file.readline()
        whole = content[: content.rfind(b"\n") + 1]
        lines = [line for line in map(_read_line, whole.splitlines()) if line is not None]
        return {"lines": lines, "offset": offset + len(whole)}

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"
